-- runs with: 3

-- How long the tasks of a tenant of one kind ran in a queue of late, packed: what
-- forecasts are made from. Every server adds what it has seen, now and then.
CREATE TABLE kind_stats (
  queue INT NOT NULL,
  tenant INT NOT NULL,
  kind TEXT NOT NULL,
  at BIGINT NOT NULL,
  data {bytes} NOT NULL,
  PRIMARY KEY (queue, tenant, kind)
) {session};
CREATE INDEX kind_stats_at ON kind_stats (at); -- what others have added

-- A map with max_parallel or min_success from its expansion to the end of its job: how
-- many of its elements have ended, run, and wait for a place. It goes with the row in
-- job_live: whoever reads or writes it has locked that.
CREATE TABLE map_live (
  job_id {uuid} NOT NULL,
  node INT NOT NULL,
  size INT NOT NULL,
  most INT NOT NULL, -- max_parallel; 0 is no bound
  ended INT NOT NULL, succeeded INT NOT NULL, skipped INT NOT NULL, -- elements, as they count below
  failures INT NOT NULL, -- that nothing but min_success can make good
  running INT NOT NULL, waiting INT NOT NULL,
  PRIMARY KEY (job_id, node)
) {hot};
