"""Read and write HTTP/2 and gRPC for the relay and the hooks' client and server: frames, header blocks, messages. No I/O."""
