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

-- Limits and admission. A lane has what its tasks ask for, and a stage: 0 is where
-- tasks stand that need no admission, or wait for one; 2 where those wait that always
-- need one; 1 where those stand that were admitted, from their admission to the end of
-- the attempt. What stands in a lane of stage 1 holds permits. The table is made anew,
-- as its key is another one. Limits are to be set only when every server has this schema.
ALTER TABLE lanes ADD COLUMN stage SMALLINT NOT NULL DEFAULT 0;

CREATE TABLE lanes_limited (
  id INT NOT NULL PRIMARY KEY,
  queue INT NOT NULL,
  tenant INT NOT NULL,
  kind TEXT NOT NULL,
  circuit TEXT NOT NULL DEFAULT '', -- empty is none
  stage SMALLINT NOT NULL DEFAULT 0,
  needs TEXT NOT NULL DEFAULT '', -- JSON of what its tasks ask for; empty is nothing
  UNIQUE (queue, tenant, kind, stage, circuit, needs)
) {key};
INSERT INTO lanes_limited (id, queue, tenant, kind, circuit, stage) SELECT id, queue, tenant, kind, circuit, stage FROM lanes;
DROP TABLE lanes;
ALTER TABLE lanes_limited RENAME TO lanes;
CREATE INDEX lanes_circuit ON lanes (tenant, circuit) WHERE circuit <> ''; -- what an open circuit stops
CREATE INDEX lanes_particular ON lanes (queue) WHERE stage = 1 AND needs <> ''; -- in which queues not every worker runs every task
CREATE INDEX lanes_claimed ON lanes (queue, tenant, kind) WHERE stage < 2; -- what is claimed from; not where keys wait

CREATE TABLE limits (
  id INT NOT NULL PRIMARY KEY,
  tenant INT NOT NULL, -- 0: of the installation
  name TEXT NOT NULL,
  scope SMALLINT NOT NULL, -- admit.Scope
  queue INT NOT NULL, -- it applies to; 0 is every one
  kind TEXT NOT NULL, -- it applies to; empty is every one
  permits BIGINT NOT NULL, -- 0: it is a rate
  period BIGINT NOT NULL, -- of a rate: nanoseconds for each unit
  burst BIGINT NOT NULL,
  arrival BIGINT NOT NULL, -- until when the rate is used up, in nanoseconds
  until BIGINT NOT NULL, -- nothing starts before: a downstream asked for it
  written SMALLINT NOT NULL, -- 0: the permits of what was admitted before it are still to be written
  auto SMALLINT NOT NULL DEFAULT 0, -- 1: a lock that a handler named; it is there while somebody wants or has it
  wanted SMALLINT NOT NULL DEFAULT 0, -- 1: tasks wait for it, so who admits says what handlers get of it
  version INT NOT NULL,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  actor TEXT NOT NULL,
  UNIQUE (tenant, name)
) {session};
CREATE INDEX limits_auto ON limits (id) WHERE auto = 1; -- those that may be swept

CREATE TABLE permits ( -- of tasks that stand in a lane of stage 1
  task_id {uuid} NOT NULL,
  limit_id INT NOT NULL, -- 0: what its handler has given back, so that a late request gets nothing
  number INT NOT NULL DEFAULT 0, -- 0: it was admitted with it; others its handler asked for while it ran
  key TEXT NOT NULL, -- concurrency key, where the limit counts by it
  weight BIGINT NOT NULL, -- that is held; 0: its handler waits for it
  at BIGINT NOT NULL, -- since when
  wants BIGINT NOT NULL DEFAULT 0, -- what its handler asked for
  token BIGINT NOT NULL DEFAULT 0, -- fences what its handler does meanwhile
  until BIGINT NOT NULL DEFAULT 0, -- a handler that waits must ask again before
  PRIMARY KEY (task_id, limit_id, number)
) {hot};
CREATE INDEX permits_limit ON permits (limit_id, key, at); -- usage, holders
CREATE INDEX permits_asked ON permits (limit_id, at, task_id) WHERE number > 0; -- what handlers hold and wait for

CREATE TABLE limit_changes ( -- insert only: who changed what
  id {serial},
  tenant INT NOT NULL,
  name TEXT NOT NULL, -- of the limit, or queue:NAME
  action TEXT NOT NULL,
  actor TEXT NOT NULL,
  reason TEXT NOT NULL,
  at BIGINT NOT NULL,
  was TEXT NOT NULL, -- JSON, or empty
  becomes TEXT NOT NULL
) {big};
CREATE INDEX limit_changes_of ON limit_changes (tenant, name, id);

CREATE TABLE gates ( -- one row: rises with every change of what has to be admitted
  id INT NOT NULL PRIMARY KEY,
  epoch BIGINT NOT NULL,
  changed_at BIGINT NOT NULL
) {key};
INSERT INTO gates (id, epoch, changed_at) VALUES (1, 0, 0);

CREATE TABLE leaders ( -- who does what only one may do
  name TEXT NOT NULL PRIMARY KEY,
  holder TEXT NOT NULL,
  term BIGINT NOT NULL,
  expires_at BIGINT NOT NULL,
  token BIGINT NOT NULL DEFAULT 0 -- the last that a handler got with a lock
) {session};
INSERT INTO leaders (name, holder, term, expires_at) VALUES ('admitter', '', 0, 0);

ALTER TABLE queues ADD COLUMN paused SMALLINT NOT NULL DEFAULT 0; -- 1: nothing starts
ALTER TABLE queues ADD COLUMN draining SMALLINT NOT NULL DEFAULT 0; -- 1: takes no new jobs
ALTER TABLE queues ADD COLUMN changed_at BIGINT NOT NULL DEFAULT 0;
ALTER TABLE queues ADD COLUMN actor TEXT NOT NULL DEFAULT '';
ALTER TABLE queues ADD COLUMN reason TEXT NOT NULL DEFAULT '';
ALTER TABLE tenants ADD COLUMN weight {real} NOT NULL DEFAULT 1; -- its share of slots beside others'
ALTER TABLE sessions ADD COLUMN resources TEXT NOT NULL DEFAULT '{}'; -- JSON of what the worker has besides slots

-- What the READY tasks of a lane and class waited for, from a time on: a row where it
-- changes. Whoever takes such a task up splits its time by them.
CREATE TABLE line_waits (
  lane INT NOT NULL,
  class SMALLINT NOT NULL,
  since BIGINT NOT NULL,
  why SMALLINT NOT NULL, -- lifecycle.Reason
  PRIMARY KEY (lane, class, since)
) {key};
CREATE INDEX line_waits_age ON line_waits (since); -- what is kept for a time only

-- Items of a map's elements, where the map expanded again: from a generation on, in
-- place of what the element's row in tasks holds. Insert only.
CREATE TABLE task_items (
  task_id {uuid} NOT NULL,
  generation INT NOT NULL,
  item {bytes} NOT NULL,
  PRIMARY KEY (task_id, generation)
) {key};

-- Generations that a rerun opened beside those it was asked for: they may end with a
-- result that is there, as the first generation may. Insert only.
CREATE TABLE task_reusable (
  task_id {uuid} NOT NULL,
  generation INT NOT NULL,
  PRIMARY KEY (task_id, generation)
) {key};

-- How far a job has come that undoes what it did: the number of the event that tells the
-- success undone last; 0 is none.
ALTER TABLE job_live ADD COLUMN undone BIGINT NOT NULL DEFAULT 0;

-- Tasks that run a pipeline as a job of its own. Such a task is WAITING meanwhile, one
-- row in task_delayed, which is looked at when it is due.
ALTER TABLE jobs ADD COLUMN parent_task {uuid}; -- the task that runs the job; none is nobody's

CREATE TABLE job_children ( -- a row for each generation of such a task, made with its job
  task_id {uuid} NOT NULL,
  generation INT NOT NULL,
  job_id {uuid} NOT NULL, -- of the task
  child {uuid} NOT NULL, -- the job that it runs; zero where there is none, as error says
  abandon SMALLINT NOT NULL,
  want SMALLINT NOT NULL, -- what its own job asks of the child: see store.Want
  depth INT NOT NULL, -- 1 for the job of a task of a job that nobody runs
  error {bytes} NOT NULL, -- JSON of the failure, or empty
  PRIMARY KEY (task_id, generation)
) {key};
CREATE INDEX job_children_job ON job_children (job_id);
CREATE INDEX job_children_child ON job_children (child);
CREATE INDEX job_children_want ON job_children (task_id, generation) WHERE want BETWEEN 1 AND 3; -- what is to be passed on

-- From when on too much waits, and what becomes of new jobs then. The changes are in
-- limit_changes, as intake:NAME, also when a rule begins and ceases to fire.
CREATE TABLE intake_rules (
  id INT NOT NULL PRIMARY KEY,
  tenant INT NOT NULL, -- 0: of all tenants
  name TEXT NOT NULL,
  queue INT NOT NULL, -- 0 is every one
  kind TEXT NOT NULL, -- empty is every one
  waiting BIGINT NOT NULL, -- bounds; 0 is none
  age BIGINT NOT NULL, wait BIGINT NOT NULL, -- nanoseconds
  act SMALLINT NOT NULL, -- store.IntakeAct
  class SMALLINT NOT NULL, -- the first that is shed
  divert INT NOT NULL, -- queue that jobs go to
  firing SMALLINT NOT NULL,
  fired_at BIGINT NOT NULL, -- since when it fires, or does not
  why TEXT NOT NULL,
  version INT NOT NULL,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  actor TEXT NOT NULL,
  UNIQUE (tenant, name)
) {session};

-- The lane that a generation of a task of a pipeline waits in, where its concurrency key,
-- which was not known when the task was made, makes it another one.
CREATE TABLE task_lanes (
  task_id {uuid} NOT NULL,
  generation INT NOT NULL,
  lane INT NOT NULL,
  PRIMARY KEY (task_id, generation)
) {key};

-- What is kept of a queue's slots for classes: JSON, empty is nothing.
ALTER TABLE queues ADD COLUMN reserves TEXT NOT NULL DEFAULT '';

-- Who of a job's running tasks has come to a barrier. A row counts while the lease is
-- there under which it came; once all have come it stays, so that the next attempt of
-- one of them goes on. It leaves with the job.
CREATE TABLE barrier_parties (
  job_id {uuid} NOT NULL,
  name TEXT NOT NULL,
  round INT NOT NULL, -- the how-manieth meeting of that name, from 1
  task_id {uuid} NOT NULL,
  generation INT NOT NULL,
  lease_version INT NOT NULL,
  number INT NOT NULL, -- of the handler's request
  parties INT NOT NULL,
  at BIGINT NOT NULL, -- since when it waits
  until BIGINT NOT NULL, -- it must ask again before; 0: it has left
  met BIGINT NOT NULL, -- when all had come; 0 is not
  PRIMARY KEY (job_id, name, round, task_id)
) {key};
