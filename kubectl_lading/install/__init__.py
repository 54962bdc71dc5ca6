"""Install Lading in a cluster, and remove it: the objects of deploy/, and what they need besides."""
