"""Whether a bundle may replace the champion, and the ledger of what was decided."""
