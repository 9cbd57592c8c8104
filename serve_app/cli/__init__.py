"""Commands that talk to a running application over HTTP, as a person would."""
