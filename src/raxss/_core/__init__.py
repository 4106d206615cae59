"""Infrastructure: atomic files, locks, bounded readers, threads, memory, progress and jobs."""
