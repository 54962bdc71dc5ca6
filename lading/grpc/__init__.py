"""Make and answer gRPC's unary calls over Unix sockets, for the hook API: a container waits while a hook server is called."""
