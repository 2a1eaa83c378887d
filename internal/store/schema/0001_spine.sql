-- Jobs and tasks. A row's place is its state: a live task has its row in exactly
-- one of task_pending, task_ready, task_queued, task_running, task_delayed; a
-- finished one in task_final, a row for each generation. Moving the row is the
-- transition. Times are microseconds since the Unix epoch; 0 is never.
-- {uuid} {bytes} {serial} and the {tails} are the words that differ by database.

CREATE TABLE tenants (
  id INT NOT NULL PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  created_at BIGINT NOT NULL
) {key};

CREATE TABLE tokens (
  id {uuid} NOT NULL PRIMARY KEY,
  tenant INT NOT NULL,
  name TEXT NOT NULL,
  hash {bytes} NOT NULL UNIQUE, -- SHA-256 of the secret
  scopes TEXT NOT NULL, -- JSON list
  created_at BIGINT NOT NULL,
  expires_at BIGINT NOT NULL,
  last_used_at BIGINT NOT NULL,
  revoked_at BIGINT NOT NULL
) {key};

CREATE TABLE queues (
  id INT NOT NULL PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  created_at BIGINT NOT NULL
) {key};

-- A lane is an immutable selector; lane 0 is where READY tasks of paused jobs stand.
CREATE TABLE lanes (
  id INT NOT NULL PRIMARY KEY,
  queue INT NOT NULL,
  tenant INT NOT NULL,
  kind TEXT NOT NULL,
  UNIQUE (queue, tenant, kind)
) {key};

CREATE TABLE pipelines (
  id INT NOT NULL PRIMARY KEY,
  tenant INT NOT NULL,
  name TEXT NOT NULL,
  version INT NOT NULL,
  hash {bytes} NOT NULL,
  definition {bytes} NOT NULL, -- canonical JSON
  source TEXT NOT NULL,
  creator TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  UNIQUE (tenant, name, version)
) {big};

CREATE TABLE jobs ( -- insert only
  id {uuid} NOT NULL PRIMARY KEY,
  tenant INT NOT NULL,
  pipeline INT NOT NULL, -- 0: a job of one task of this kind
  kind TEXT NOT NULL,
  class SMALLINT NOT NULL,
  creator TEXT NOT NULL,
  labels {bytes} NOT NULL, -- JSON object, or empty
  input {bytes} NOT NULL, -- of a pipeline job; a kind job's input is its task's
  trace TEXT NOT NULL, -- the client's traceparent, or empty
  due_at BIGINT NOT NULL,
  expires_at BIGINT NOT NULL,
  created_at BIGINT NOT NULL,
  fingerprint {bytes} NOT NULL -- of the request, to tell a repeat from another job
) {big};
CREATE INDEX jobs_tenant ON jobs (tenant, id); -- lists, newest first

CREATE TABLE job_live ( -- a job of one task has none until its first pause, cancel or replay
  job_id {uuid} NOT NULL PRIMARY KEY,
  tenant INT NOT NULL,
  run INT NOT NULL,
  graph INT NOT NULL, -- rises when rows are added or held; settles assert it
  events BIGINT NOT NULL, -- number of the newest event
  total INT NOT NULL,
  open INT NOT NULL, -- rows of the job in the live tables
  succeeded INT NOT NULL,
  failed INT NOT NULL,
  cancelled INT NOT NULL,
  skipped INT NOT NULL,
  paused SMALLINT NOT NULL,
  cancelling SMALLINT NOT NULL -- the cause of the cancel hold; 0 is none
) {hot};

CREATE TABLE job_final ( -- insert only, a row for each finished run
  job_id {uuid} NOT NULL,
  run INT NOT NULL,
  tenant INT NOT NULL,
  status SMALLINT NOT NULL,
  events BIGINT NOT NULL,
  total INT NOT NULL,
  succeeded INT NOT NULL,
  failed INT NOT NULL,
  cancelled INT NOT NULL,
  skipped INT NOT NULL,
  finished_at BIGINT NOT NULL,
  PRIMARY KEY (job_id, run)
) {key};
CREATE INDEX job_final_bad ON job_final (tenant, status, job_id) WHERE status <> 8; -- lists of what went wrong

CREATE TABLE job_holds ( -- what claims step over
  job_id {uuid} NOT NULL,
  kind SMALLINT NOT NULL, -- 1 pause, 2 cancel
  cause SMALLINT NOT NULL,
  at BIGINT NOT NULL,
  actor TEXT NOT NULL,
  reason TEXT NOT NULL,
  swept SMALLINT NOT NULL,
  PRIMARY KEY (job_id, kind)
) {key};
CREATE INDEX job_holds_at ON job_holds (at); -- a claim looks for holds that came while it ran

CREATE INDEX job_holds_sweep ON job_holds (job_id, kind) WHERE kind = 2 OR swept = 0;

CREATE TABLE job_timers ( -- expires_at of jobs
  at BIGINT NOT NULL,
  job_id {uuid} NOT NULL,
  PRIMARY KEY (at, job_id)
) {key};

CREATE TABLE tasks ( -- insert only
  id {uuid} NOT NULL PRIMARY KEY,
  job_id {uuid} NOT NULL,
  tenant INT NOT NULL,
  node INT NOT NULL,
  idx INT NOT NULL, -- -1 is a map before it expands
  pipeline INT NOT NULL,
  queue INT NOT NULL,
  lane INT NOT NULL,
  class SMALLINT NOT NULL,
  kind TEXT NOT NULL,
  input {bytes} NOT NULL, -- of a kind job, or the item of a map's element
  policy {bytes} NOT NULL, -- JSON retry and timeout of a kind job; empty is the default
  trace TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  UNIQUE (job_id, node, idx)
) {big};

CREATE TABLE task_inputs ( -- edited inputs, from a generation on
  task_id {uuid} NOT NULL,
  generation INT NOT NULL,
  input {bytes} NOT NULL,
  PRIMARY KEY (task_id, generation)
) {key};

CREATE TABLE task_pending (
  task_id {uuid} NOT NULL, job_id {uuid} NOT NULL, node INT NOT NULL, idx INT NOT NULL, queue INT NOT NULL, lane INT NOT NULL, class SMALLINT NOT NULL,
  generation INT NOT NULL, attempt INT NOT NULL, losses INT NOT NULL, lease_version INT NOT NULL, events INT NOT NULL, due_at BIGINT NOT NULL, waits {bytes} NOT NULL,
  unmet INT NOT NULL, since BIGINT NOT NULL,
  PRIMARY KEY (job_id, node, idx)
) {hot};

CREATE TABLE task_ready (
  task_id {uuid} NOT NULL, job_id {uuid} NOT NULL, node INT NOT NULL, idx INT NOT NULL, queue INT NOT NULL, lane INT NOT NULL, class SMALLINT NOT NULL,
  generation INT NOT NULL, attempt INT NOT NULL, losses INT NOT NULL, lease_version INT NOT NULL, events INT NOT NULL, due_at BIGINT NOT NULL, waits {bytes} NOT NULL,
  ready_at BIGINT NOT NULL, since BIGINT NOT NULL,
  PRIMARY KEY (queue, class, lane, due_at, task_id)
) {hot};
CREATE INDEX task_ready_job ON task_ready (job_id, node, idx);
CREATE INDEX task_ready_free ON task_ready (queue, class, lane, due_at, task_id) WHERE lane <> 0; -- the admitter steps over what is held

CREATE TABLE task_queued (
  task_id {uuid} NOT NULL, job_id {uuid} NOT NULL, node INT NOT NULL, idx INT NOT NULL, queue INT NOT NULL, lane INT NOT NULL, class SMALLINT NOT NULL,
  generation INT NOT NULL, attempt INT NOT NULL, losses INT NOT NULL, lease_version INT NOT NULL, events INT NOT NULL, due_at BIGINT NOT NULL, waits {bytes} NOT NULL,
  ready_at BIGINT NOT NULL, queued_at BIGINT NOT NULL,
  PRIMARY KEY (queue, class, lane, due_at, task_id)
) {hot};
CREATE INDEX task_queued_job ON task_queued (job_id, node, idx); -- pause and cancel lock a job's queued rows; a page of tasks is a range of places

CREATE TABLE task_running ( -- the lease; it runs out when its session's does
  task_id {uuid} NOT NULL PRIMARY KEY, job_id {uuid} NOT NULL, node INT NOT NULL, idx INT NOT NULL, queue INT NOT NULL, lane INT NOT NULL, class SMALLINT NOT NULL,
  generation INT NOT NULL, attempt INT NOT NULL, losses INT NOT NULL, lease_version INT NOT NULL, events INT NOT NULL, due_at BIGINT NOT NULL, waits {bytes} NOT NULL,
  ready_at BIGINT NOT NULL, queued_at BIGINT NOT NULL, claimed_at BIGINT NOT NULL, session_id BIGINT NOT NULL, acquire_no BIGINT NOT NULL
) {hot};
CREATE INDEX task_running_session ON task_running (session_id, task_id);
CREATE INDEX task_running_job ON task_running (job_id, task_id);

CREATE TABLE task_delayed ( -- RETRY_WAIT, and PENDING until a start time
  task_id {uuid} NOT NULL, job_id {uuid} NOT NULL, node INT NOT NULL, idx INT NOT NULL, queue INT NOT NULL, lane INT NOT NULL, class SMALLINT NOT NULL,
  generation INT NOT NULL, attempt INT NOT NULL, losses INT NOT NULL, lease_version INT NOT NULL, events INT NOT NULL, due_at BIGINT NOT NULL, waits {bytes} NOT NULL,
  status SMALLINT NOT NULL, since BIGINT NOT NULL,
  PRIMARY KEY (due_at, task_id)
) {hot};
CREATE INDEX task_delayed_job ON task_delayed (job_id, node, idx);

CREATE TABLE task_final ( -- insert only, a row for each finished generation
  task_id {uuid} NOT NULL,
  generation INT NOT NULL,
  job_id {uuid} NOT NULL,
  tenant INT NOT NULL,
  status SMALLINT NOT NULL,
  attempt INT NOT NULL,
  losses INT NOT NULL,
  lease_version INT NOT NULL,
  session_id BIGINT NOT NULL,
  ready_at BIGINT NOT NULL,
  queued_at BIGINT NOT NULL,
  claimed_at BIGINT NOT NULL,
  finished_at BIGINT NOT NULL,
  waits {bytes} NOT NULL,
  output {bytes} NOT NULL,
  error {bytes} NOT NULL, -- JSON of the failure, or empty
  PRIMARY KEY (task_id, generation)
) {big};
CREATE INDEX task_final_bad ON task_final (tenant, status, task_id) WHERE status IN (9, 12); -- dead letters
CREATE INDEX task_final_bad_job ON task_final (job_id) WHERE status IN (9, 12); -- why a job failed

CREATE TABLE attempts ( -- insert only: every attempt that ended other than by a first-try success
  task_id {uuid} NOT NULL,
  lease_version INT NOT NULL,
  generation INT NOT NULL,
  n INT NOT NULL,
  job_id {uuid} NOT NULL,
  session_id BIGINT NOT NULL,
  ready_at BIGINT NOT NULL,
  queued_at BIGINT NOT NULL,
  claimed_at BIGINT NOT NULL,
  ended_at BIGINT NOT NULL,
  outcome TEXT NOT NULL,
  status SMALLINT NOT NULL, -- of the task after it
  error {bytes} NOT NULL,
  PRIMARY KEY (task_id, lease_version)
) {big};

CREATE TABLE events ( -- insert only, numbered per job without gaps
  job_id {uuid} NOT NULL,
  seq BIGINT NOT NULL,
  type TEXT NOT NULL,
  at BIGINT NOT NULL,
  task_id {uuid} NOT NULL,
  data {bytes} NOT NULL,
  PRIMARY KEY (job_id, seq)
) {key};

CREATE TABLE sessions (
  id {serial},
  tenant INT NOT NULL, -- 0 serves every tenant
  actor TEXT NOT NULL,
  worker TEXT NOT NULL,
  queues TEXT NOT NULL, kinds TEXT NOT NULL, labels TEXT NOT NULL, -- JSON
  slots INT NOT NULL,
  version TEXT NOT NULL,
  draining SMALLINT NOT NULL,
  started_at BIGINT NOT NULL,
  expires_at BIGINT NOT NULL,
  ended SMALLINT NOT NULL -- 1: no claims any more, its tasks are being taken back; 2: they have been. The row stays for history
) {session};
CREATE INDEX sessions_live ON sessions (expires_at, id) WHERE ended = 0;
CREATE INDEX sessions_ending ON sessions (id) WHERE ended = 1;

CREATE TABLE idempotency (
  tenant INT NOT NULL,
  key TEXT NOT NULL,
  job_id {uuid} NOT NULL,
  fingerprint {bytes} NOT NULL,
  created_at BIGINT NOT NULL,
  PRIMARY KEY (tenant, key)
) {key};
CREATE INDEX idempotency_age ON idempotency (created_at);

CREATE TABLE operations ( -- requests on jobs and tasks that carried a request id
  tenant INT NOT NULL,
  request_id TEXT NOT NULL,
  action TEXT NOT NULL,
  subject TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  PRIMARY KEY (tenant, request_id)
) {key};
CREATE INDEX operations_age ON operations (created_at);

CREATE TABLE artifacts ( -- staged when uploaded, visible when the attempt's outcome is accepted
  id {uuid} NOT NULL PRIMARY KEY,
  tenant INT NOT NULL,
  job_id {uuid} NOT NULL,
  task_id {uuid} NOT NULL,
  generation INT NOT NULL,
  lease_version INT NOT NULL,
  visible SMALLINT NOT NULL,
  name TEXT NOT NULL,
  kind TEXT NOT NULL,
  media_type TEXT NOT NULL,
  sha256 {bytes} NOT NULL,
  size BIGINT NOT NULL,
  metadata {bytes} NOT NULL,
  created_at BIGINT NOT NULL
) {big};
CREATE INDEX artifacts_tenant ON artifacts (tenant, id) WHERE visible = 1;
CREATE INDEX artifacts_job ON artifacts (job_id, id) WHERE visible = 1;
CREATE INDEX artifacts_staged ON artifacts (created_at) WHERE visible = 0;
CREATE INDEX artifacts_bytes ON artifacts (sha256); -- which bytes are in use

CREATE TABLE logs (
  job_id {uuid} NOT NULL,
  id {uuid} NOT NULL,
  task_id {uuid} NOT NULL,
  attempt INT NOT NULL,
  level TEXT NOT NULL,
  at BIGINT NOT NULL,
  text TEXT NOT NULL,
  attrs {bytes} NOT NULL,
  PRIMARY KEY (job_id, id)
) {key};
CREATE INDEX logs_task ON logs (task_id, id);

CREATE TABLE log_sizes ( -- bytes stored for an attempt, to cap them
  task_id {uuid} NOT NULL,
  lease_version INT NOT NULL,
  bytes BIGINT NOT NULL,
  PRIMARY KEY (task_id, lease_version)
) {hot};

CREATE TABLE task_progress ( -- of running tasks; stale rows are cleaned
  task_id {uuid} NOT NULL PRIMARY KEY,
  lease_version INT NOT NULL,
  ratio {real} NOT NULL,
  message TEXT NOT NULL,
  at BIGINT NOT NULL
) {hot};
