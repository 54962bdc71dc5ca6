"""HTTP/2 and gRPC for the relay, the hooks' client and the hooks' server: frames, header blocks, messages. No I/O."""
