-- runs with: 1

-- How long finished jobs are kept, by tenant; microseconds, 0 is for ever. A
-- tenant without a row has the default.
CREATE TABLE retention (
  tenant INT NOT NULL PRIMARY KEY,
  succeeded BIGINT NOT NULL,
  failed BIGINT NOT NULL,
  cancelled BIGINT NOT NULL
) {key};

CREATE TABLE job_purges ( -- jobs that have left: their row in jobs is gone, what else they had is being deleted
  job_id {uuid} NOT NULL PRIMARY KEY,
  at BIGINT NOT NULL
) {key};

CREATE TABLE task_stops ( -- running tasks whose worker has told the handler to stop; stale rows are cleaned
  task_id {uuid} NOT NULL PRIMARY KEY,
  lease_version INT NOT NULL,
  at BIGINT NOT NULL
) {hot};

-- A row for a task that must be looked at by a time of its own (schedule_to_close,
-- heartbeat), or whose attempts leave checkpoints. It outlives an attempt, and is
-- deleted when the task has ended.
CREATE TABLE task_watches (
  task_id {uuid} NOT NULL PRIMARY KEY,
  job_id {uuid} NOT NULL, node INT NOT NULL, idx INT NOT NULL, -- where its live row is found
  generation INT NOT NULL,
  closes_at BIGINT NOT NULL, -- schedule_to_close, fixed once; 0 is never
  lease_version INT NOT NULL, -- of the attempt that beats
  beat_by BIGINT NOT NULL, -- when its next heartbeat must have come; 0 is never
  beat_at BIGINT NOT NULL, -- of the last heartbeat
  checkpoint {bytes} NOT NULL, -- JSON of the last heartbeat that had one, or empty
  look_at BIGINT NOT NULL -- not moved by a heartbeat, so that one changes no index
) {session};
CREATE INDEX task_watches_look ON task_watches (look_at, task_id); -- what is to be looked at
