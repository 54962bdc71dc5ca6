"""HTTP/2 and gRPC as the relay, the hooks' client and the hooks' server speak them: frames, header blocks, messages. No I/O."""
