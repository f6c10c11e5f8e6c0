"""What a run means: step time, where it goes, memory, links, how sure all of that is."""
