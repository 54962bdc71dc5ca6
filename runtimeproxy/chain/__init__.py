"""Hook servers: their registrations, the folder that holds them, and how they are asked."""
