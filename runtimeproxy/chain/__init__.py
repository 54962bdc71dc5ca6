"""Read the registrations of hook servers, and call the servers."""
