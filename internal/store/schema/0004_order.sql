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
