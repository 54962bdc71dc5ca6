"""Check how kubelet is started: its process, its unit, and the configuration of K3s and RKE2."""
