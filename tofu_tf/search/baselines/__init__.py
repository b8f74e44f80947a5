"""What is compared with: other searches and ways to train in parallel, as algorithms."""
