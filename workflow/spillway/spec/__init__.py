"""What is asked, where, and of which model? Experiments, hosts and models as checked objects."""
