"""Actors: who takes part in a race, as threads here or as processes of their own."""
