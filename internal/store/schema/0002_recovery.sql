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

-- A lane's selector has the circuit of its tasks too. The table is made anew, as
-- its key is another one; the first statement keeps others from it meanwhile.
ALTER TABLE lanes ADD COLUMN circuit TEXT NOT NULL DEFAULT '';

CREATE TABLE lanes_anew (
  id INT NOT NULL PRIMARY KEY,
  queue INT NOT NULL,
  tenant INT NOT NULL,
  kind TEXT NOT NULL,
  circuit TEXT NOT NULL DEFAULT '', -- empty is none
  UNIQUE (queue, tenant, kind, circuit)
) {key};
INSERT INTO lanes_anew (id, queue, tenant, kind, circuit) SELECT id, queue, tenant, kind, circuit FROM lanes;
DROP TABLE lanes;
ALTER TABLE lanes_anew RENAME TO lanes;
CREATE INDEX lanes_circuit ON lanes (tenant, circuit) WHERE circuit <> ''; -- what an open circuit stops

CREATE TABLE circuits ( -- a row from the first lane on; only failures touch it while it is closed
  tenant INT NOT NULL,
  name TEXT NOT NULL,
  state SMALLINT NOT NULL, -- 0 closed, 1 open, 2 probing, 3 recovering
  failures INT NOT NULL,
  first_at BIGINT NOT NULL,
  since BIGINT NOT NULL,
  until BIGINT NOT NULL,
  openings INT NOT NULL,
  started INT NOT NULL,
  probe {uuid} NOT NULL,
  probe_version INT NOT NULL,
  reason TEXT NOT NULL,
  policy_failures INT NOT NULL, -- the policy; 0 is the default
  policy_window BIGINT NOT NULL,
  policy_pause BIGINT NOT NULL,
  policy_max_pause BIGINT NOT NULL,
  PRIMARY KEY (tenant, name)
) {session};
CREATE INDEX circuits_stopped ON circuits (tenant, name) WHERE state <> 0; -- claims ask for them; mostly there are none

-- Dead letters. A server of schema 1 writes no rows here: what it ends and replays
-- is filed by the loop that looks for dead letters without a row.
CREATE TABLE dead_letters ( -- a row for each generation that ended FAILED or DEAD_LETTER; only its state changes
  task_id {uuid} NOT NULL,
  generation INT NOT NULL,
  tenant INT NOT NULL,
  job_id {uuid} NOT NULL,
  status SMALLINT NOT NULL,
  pipeline TEXT NOT NULL, -- its name; empty for a kind job
  node TEXT NOT NULL, -- its name in the pipeline; of a kind job, its kind
  idx INT NOT NULL,
  kind TEXT NOT NULL,
  queue INT NOT NULL,
  fingerprint TEXT NOT NULL,
  error_class TEXT NOT NULL,
  error_type TEXT NOT NULL,
  message TEXT NOT NULL, -- cut
  attempt INT NOT NULL,
  losses INT NOT NULL,
  session_id BIGINT NOT NULL,
  at BIGINT NOT NULL, -- when it ended
  state SMALLINT NOT NULL, -- 1 open, 2 replayed, 3 closed
  state_at BIGINT NOT NULL,
  actor TEXT NOT NULL, -- who changed the state, and why
  reason TEXT NOT NULL,
  operation {uuid} NOT NULL, -- of which it was a part; all zero is none
  PRIMARY KEY (task_id, generation)
) {big};
CREATE INDEX dead_letters_state ON dead_letters (tenant, state, at, task_id, generation); -- lists, newest first
CREATE INDEX dead_letters_group ON dead_letters (tenant, state, fingerprint, at, task_id, generation); -- groups, and lists of one
CREATE INDEX dead_letters_job ON dead_letters (job_id);

CREATE TABLE batch_operations ( -- replays and closes of many dead letters
  id {uuid} NOT NULL PRIMARY KEY,
  tenant INT NOT NULL,
  action TEXT NOT NULL, -- replay, close
  state SMALLINT NOT NULL, -- 1 running, 2 waits for its canaries, 3 done, 4 stopped
  actor TEXT NOT NULL,
  reason TEXT NOT NULL,
  request_id TEXT NOT NULL,
  spec {bytes} NOT NULL, -- JSON: what is asked for
  why TEXT NOT NULL, -- it stopped
  total INT NOT NULL,
  done INT NOT NULL,
  refused INT NOT NULL,
  canary INT NOT NULL, -- how many are done before the others
  due_at BIGINT NOT NULL, -- when it goes on
  created_at BIGINT NOT NULL,
  ended_at BIGINT NOT NULL
) {big};
CREATE INDEX batch_operations_due ON batch_operations (due_at, id) WHERE state IN (1, 2); -- what goes on next
CREATE INDEX batch_operations_tenant ON batch_operations (tenant, id); -- lists, newest first
CREATE INDEX batch_operations_age ON batch_operations (ended_at) WHERE state IN (3, 4);

CREATE TABLE batch_items (
  operation {uuid} NOT NULL,
  n INT NOT NULL, -- from 1, oldest dead letter first
  task_id {uuid} NOT NULL,
  generation INT NOT NULL,
  state SMALLINT NOT NULL, -- 0 waits, 1 done, 2 refused
  code TEXT NOT NULL, -- of the refusal
  detail TEXT NOT NULL,
  PRIMARY KEY (operation, n)
) {key};
CREATE INDEX batch_items_waiting ON batch_items (operation, n) WHERE state = 0;
CREATE INDEX batch_items_refused ON batch_items (operation, n) WHERE state = 2;
