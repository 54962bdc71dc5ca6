"""`lading-hooks doctor`: is this node all right for handing out its GPUs and VFs?"""
