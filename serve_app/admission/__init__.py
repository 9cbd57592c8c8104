"""Admission: which requests are let in. Headers, open requests of a replica, slots of a tier, the drain."""
