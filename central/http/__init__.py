"""HTTP/1.1 for what calls central: a server with bounds, which the extender and the page each have."""
