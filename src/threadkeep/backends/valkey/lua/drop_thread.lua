-- Deletes a thread. ARGV: member, id, last.
drop(ARGV[1], ARGV[2], ARGV[3])
return 1
