"""The monitor's state: what the topics last said, in bounded memory."""
