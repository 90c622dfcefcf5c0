"""What urls name: their grammar, hosts, patterns."""
