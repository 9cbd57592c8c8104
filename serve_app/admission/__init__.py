"""What is let in: headers, open requests, slots of a tier, and the drain."""
