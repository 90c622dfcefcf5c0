"""Who the other engines are: looked up, asked, and followed."""
