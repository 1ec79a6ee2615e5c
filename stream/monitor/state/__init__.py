"""The monitor's state: the latest records of the topics, in bounded memory."""
