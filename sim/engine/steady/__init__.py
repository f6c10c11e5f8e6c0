"""What repeats is executed once: steps that are like the one before (`steps`), and equal rounds of one (`rounds`)."""
