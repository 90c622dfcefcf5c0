"""Archives other than tars."""
