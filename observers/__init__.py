"""What runs after the application has committed: workers and what they tell of the changes they make."""
