"""What follows a run: promotion, the watch over a champion, and its retraining."""
