"""Hook servers: their registrations, the folder that holds them, and the calls to them."""
