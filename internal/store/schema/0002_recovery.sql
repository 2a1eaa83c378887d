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
