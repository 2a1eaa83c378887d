package api

import (
	"net/http"
	"slices"
	"strconv"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/protocol"
)

// route is one operation: what serves it, who may call it, and what the
// OpenAPI document says. The table below is the only place where routes are made.
type route struct {
	method, path string
	// id is the operationId; it never changes.
	id, tag string
	policy  policy
	handle  func(*API, http.ResponseWriter, *request) error
	// summary is half a line, about the rest a reader needs.
	summary, about string
	params         []param
	body           body
	answers        []answer
	// codes are the problems of its own, beside those that any route has.
	codes []drover.Code
}

// param is a parameter of the query or a header. Those of the path are in the path.
type param struct {
	in       place
	name     string
	about    string
	schema   object
	required bool
	repeat   bool
}

type place string

const (
	inQuery  place = "query"
	inHeader place = "header"
	inPath   place = "path"
)

// body is what a route reads.
type body struct {
	// of is a value of the type; nil is no body, or one that is not JSON.
	of       any
	optional bool
	mild     bool // see decode
	batch    bool // may be as large as Config.MaxBatchBody
	media    []string
	about    string
	example  any
}

// answer is one way a route succeeds.
type answer struct {
	status  int
	of      any    // a value of the type; nil is none
	media   string // of what is not JSON
	about   string
	headers []string
	example any
}

var (
	limitParam  = param{in: inQuery, name: "limit", about: "How many items a page has at most.", schema: object{{"type", "integer"}, {"minimum", 1}, {"maximum", maxPage}, {"default", defaultPage}}}
	cursorParam = param{in: inQuery, name: "cursor", about: "`next_cursor` of the page before; valid for 24 hours and with the same filters.", schema: stringSchema}
	kindParam   = param{in: inQuery, name: "kind", about: "Only those of this kind.", schema: stringSchema}
	statusParam = param{in: inQuery, name: "status", about: "Only those in one of these statuses, separated by commas.", schema: object{{"type", "string"}, {"examples", []any{"RUNNING,QUEUED"}}}, repeat: true}
	waitHeader  = param{in: inHeader, name: protocol.HeaderPrefer, about: "`wait=N` waits up to N seconds, at most 60, for the job to be final; `respond-async` does not wait.", schema: object{{"type", "string"}, {"examples", []any{"wait=30"}}}}
	keyHeader   = param{in: inHeader, name: protocol.HeaderIdempotencyKey, about: "Makes a repeat of the request return the first job, for 7 days: a string in double quotes or bare. The member `idempotency_key` means the same.", schema: object{{"type", "string"}, {"maxLength", maxKey + 2}}}
	nameHeader  = param{in: inHeader, name: protocol.HeaderIdempotencyKey, about: "The same as `request_id` in the body.", schema: object{{"type", "string"}, {"maxLength", maxKey + 2}}}
	tagHeader   = param{in: inHeader, name: "If-None-Match", about: "The `ETag` the client has; 304 says that it is still right.", schema: stringSchema}
)

func pages(more ...param) []param { return append(more, limitParam, cursorParam) }

// pathParams describes what stands in braces in the paths.
var pathParams = map[string]object{
	"job_id":       {{"$ref", "#/components/schemas/JobID"}},
	"task_id":      {{"$ref", "#/components/schemas/TaskID"}},
	"artifact_id":  {{"$ref", "#/components/schemas/ArtifactID"}},
	"worker_id":    {{"$ref", "#/components/schemas/SessionID"}},
	"token_id":     {{"$ref", "#/components/schemas/TokenID"}},
	"operation_id": {{"$ref", "#/components/schemas/OperationID"}},
	"pipeline":     stringSchema,
	"queue":        stringSchema,
	"limit":        stringSchema,
}

func ok(of, example any, headers ...string) []answer {
	return []answer{{status: http.StatusOK, of: of, about: "Done.", headers: headers, example: example}}
}

func listOf(of, example any) []answer {
	return []answer{{status: http.StatusOK, of: of, about: "A page of the list; `next_cursor` is there when another follows.", headers: []string{"Link"}, example: example}}
}

func tagged(of, example any, headers ...string) []answer {
	return []answer{
		{status: http.StatusOK, of: of, about: "As it is now.", headers: append(headers, "ETag"), example: example},
		{status: http.StatusNotModified, about: "The client's `ETag` is still right."},
	}
}

// letterParams are the filters of dead letters. more are states that a list has besides.
func letterParams(more ...any) []param {
	states := append([]any{drover.LetterOpen, drover.LetterReplayed, drover.LetterClosed}, more...)
	return []param{
		{in: inQuery, name: "state", about: "What has become of it.", schema: object{{"type", "string"}, {"enum", states}, {"default", drover.LetterOpen}}},
		{in: inQuery, name: "fingerprint", about: "Only those of this group.", schema: stringSchema},
		kindParam,
		{in: inQuery, name: "pipeline", about: "Only those of this pipeline.", schema: stringSchema},
		{in: inQuery, name: "queue", about: "Only those of this queue.", schema: stringSchema},
		{in: inQuery, name: "error_class", about: "Only those with an error of this class.", schema: object{{"$ref", "#/components/schemas/ErrorClass"}}},
		{in: inQuery, name: "status", about: "Only DEAD_LETTER (attempts used up) or FAILED (permanent error).", schema: object{{"type", "string"}, {"enum", []any{"DEAD_LETTER", "FAILED"}}}},
		{in: inQuery, name: "job_id", about: "Only those of this job.", schema: object{{"$ref", "#/components/schemas/JobID"}}},
		{in: inQuery, name: "since", about: "Only those that ended at this time or after it.", schema: timeSchema},
		{in: inQuery, name: "until", about: "Only those that ended before this time.", schema: timeSchema},
	}
}

// operated are the answers of what a batch operation does.
func operated() []answer {
	return []answer{
		{status: http.StatusOK, of: drover.BatchOperation{}, about: "Done, as far as it was not refused; or what would be done, of a dry run.", headers: []string{"Location"}, example: exampleOperation},
		{status: http.StatusAccepted, of: drover.BatchOperation{}, about: "The operation is committed and goes on by itself.", headers: []string{"Location", "Retry-After"}, example: exampleRunning},
	}
}

func done(about string) []answer { return []answer{{status: http.StatusNoContent, about: about}} }

func health(id, path, summary string, serve func(*API, http.ResponseWriter, *request) error, params ...param) route {
	verbose := param{in: inQuery, name: "verbose", about: "Answer in JSON, with each check.", schema: stringSchema}
	text := ok(protocol.Health{}, exampleHealth)
	if id != "getHealth" {
		text = []answer{
			{status: http.StatusOK, media: "text/plain", about: "`ok`.", example: "ok\n"},
			{status: http.StatusOK, of: protocol.Health{}, about: "JSON with ?verbose.", example: exampleHealth},
		}
	}
	if id != "getLiveness" {
		text = append(text, answer{status: http.StatusServiceUnavailable, of: protocol.Health{}, about: "JSON with ?verbose.", example: exampleUnready})
	}
	codes := []drover.Code{drover.CodeValidation, drover.CodeOverloaded}
	return route{method: "GET", path: path, id: id, tag: "server", policy: public(), handle: serve, summary: summary, params: append(params, verbose), answers: text, codes: codes}
}

// table lists every route there is.
func table() []route {
	exclude := param{in: inQuery, name: "exclude", about: "A check to leave out.", schema: object{{"type", "string"}, {"enum", []any{checkDatabase}}}, repeat: true}
	submitted := []answer{
		{status: http.StatusAccepted, of: protocol.SubmitResponse{}, about: "The job is committed.", headers: []string{"Location", "Retry-After", protocol.HeaderIdempotencyReplayed, protocol.HeaderPreferenceApplied}, example: exampleSubmitted},
		{status: http.StatusOK, of: drover.Job{}, about: "With `Prefer: wait`: the job is committed and already final. With `dry_run`: the job as it would begin; nothing was done.", headers: []string{"Location", protocol.HeaderIdempotencyReplayed, protocol.HeaderPreferenceApplied}, example: exampleJob},
	}
	submitCodes := []drover.Code{drover.CodeNotFound, drover.CodePayloadTooLarge, drover.CodeSchemaMismatch, drover.CodeTooManyTasks, drover.CodeExceedsLimit, drover.CodeDraining, drover.CodeQuota, drover.CodeRateLimited, drover.CodeIdempotencyInUse, drover.CodeIdempotencyReused}
	act := func(verb, summary, about string, h func(*API, http.ResponseWriter, *request) error) route {
		return route{
			method: "POST", path: "/v1/jobs/{job_id}/" + verb, id: verb + "Job", tag: "jobs", policy: scope("jobs:write"), handle: h,
			summary: summary, about: about, params: []param{nameHeader},
			body: body{of: protocol.ActionRequest{}, optional: true, example: exampleAction}, answers: ok(drover.Job{}, exampleJob),
			codes: []drover.Code{drover.CodeNotFound, drover.CodeInvalidTransition, drover.CodePayloadTooLarge, drover.CodeIdempotencyReused},
		}
	}
	state := func(verb, summary, about string, of func(*engine.Engine) queueAction) route {
		return route{method: "POST", path: "/v1/queues/{queue}/" + verb, id: verb + "Queue", tag: "queues", policy: operator(), handle: onQueue(of), summary: summary, about: about,
			body: body{of: protocol.QueueRequest{}, optional: true, example: protocol.QueueRequest{Reason: "repairs"}}, answers: ok(drover.Queue{}, exampleQueue), codes: []drover.Code{drover.CodeNotFound, drover.CodePayloadTooLarge}}
	}
	changeParams := func(tells string) []param {
		return []param{
			{in: inQuery, name: "dry_run", about: "`true` tells " + tells + ", and changes nothing.", schema: object{{"type", "boolean"}}},
			{in: inHeader, name: "If-Match", about: "The `ETag` that it must have.", schema: stringSchema},
		}
	}
	newParam := param{in: inHeader, name: "If-None-Match", about: "`*`: there must be none yet.", schema: stringSchema}
	reasonParam := param{in: inQuery, name: "reason", about: "Kept with the change.", schema: stringSchema}
	limitParams, intakeParams := changeParams("what would change, in `preview`"), changeParams("how things stand by it")
	limitCodes := []drover.Code{drover.CodeConflict, drover.CodePreconditionFailed, drover.CodeBudget, drover.CodePayloadTooLarge}
	notFound := []drover.Code{drover.CodeNotFound}
	list := []drover.Code{drover.CodeCursorExpired}
	listIn := []drover.Code{drover.CodeCursorExpired, drover.CodeNotFound}
	lockable := []drover.Code{drover.CodeNotFound, drover.CodeLeaseLost, drover.CodeDeadlock, drover.CodeInvalidTransition, drover.CodeExceedsLimit, drover.CodeBudget, drover.CodePayloadTooLarge}
	leased := []drover.Code{drover.CodeNotFound, drover.CodeLeaseLost, drover.CodePayloadTooLarge}
	return []route{
		{method: "POST", path: "/v1/jobs", id: "submitJob", tag: "jobs", policy: scope("jobs:write"), handle: (*API).submitJob,
			summary: "Submit a job",
			about:   "The answer comes after the job is committed: what was accepted is not lost. A job is either of a pipeline (`pipeline`, `input`) or of a single task (`kind`, `queue`, `input`). Repeating the request with the same idempotency key, or the same `job_id`, returns the first job.",
			params: []param{keyHeader, waitHeader,
				{in: inQuery, name: "dry_run", about: "`true` checks everything that a submit checks, tells what it would refuse, and does nothing. A repeat answers with the job that there is.", schema: object{{"type", "boolean"}}}},
			body: body{of: drover.NewJob{}, example: exampleNewJob}, answers: submitted, codes: submitCodes},
		{method: "POST", path: "/v1/jobs/batch", id: "submitJobs", tag: "jobs", policy: scope("jobs:write"), handle: (*API).submitBatch,
			summary: "Submit up to 10,000 jobs",
			about:   "They start in the order they have here. A job that is refused stands in the answer with its problem, in its place, and so does one that could not be stored (503): send it again. The others are accepted. A body that is not well-formed is refused whole.",
			body:    body{of: protocol.BatchRequest{}, batch: true, example: exampleBatch}, answers: ok(protocol.BatchResponse{}, exampleBatchAnswer), codes: []drover.Code{drover.CodePayloadTooLarge}},
		{method: "POST", path: "/processing-jobs", id: "submitProcessingJob", tag: "jobs", policy: scope("jobs:write"), handle: (*API).submitProcessingJob,
			summary: "Submit a job to process an object",
			about:   "An alias of POST /v1/jobs: the job's input is {\"object_id\": …}. `pipeline` is a name, alone or with a version: \"name@3\" or \"name-v3\".",
			params:  []param{keyHeader}, body: body{of: protocol.ProcessingRequest{}, example: exampleProcessing},
			answers: []answer{{status: http.StatusAccepted, of: protocol.ProcessingResponse{}, about: "The job is committed.", headers: []string{"Location", "Retry-After", protocol.HeaderIdempotencyReplayed}, example: exampleProcessed}}, codes: submitCodes},
		{method: "GET", path: "/v1/jobs", id: "listJobs", tag: "jobs", policy: scope("jobs:read"), handle: (*API).listJobs,
			summary: "List jobs, newest first",
			params: pages(statusParam, kindParam,
				param{in: inQuery, name: "pipeline", about: "Only those of this pipeline.", schema: stringSchema},
				param{in: inQuery, name: "label", about: "Only those with this label, as key:value; several must all hold.", schema: object{{"type", "string"}, {"examples", []any{"team:vision"}}}, repeat: true},
				param{in: inQuery, name: "degraded", about: "Only those with failures that were made good, or only those without.", schema: object{{"type", "boolean"}}},
				param{in: inQuery, name: "top", about: "Only those that no task of another job runs, or only those that one does.", schema: object{{"type", "boolean"}}},
				param{in: inQuery, name: "created_after", about: "Only those created after this time.", schema: timeSchema},
				param{in: inQuery, name: "created_before", about: "Only those created before this time.", schema: timeSchema}),
			answers: listOf(protocol.Page[drover.Job]{}, examplePage(exampleJob)), codes: list},
		{method: "GET", path: "/v1/jobs/{job_id}", id: "getJob", tag: "jobs", policy: scope("jobs:read"), handle: (*API).getJob,
			summary: "Get a job", about: "With `Prefer: wait=N` the answer comes when the job is final, or after N seconds with the job as it is then.",
			params: []param{waitHeader, tagHeader}, answers: tagged(drover.Job{}, exampleJob, "Retry-After", protocol.HeaderPreferenceApplied), codes: notFound},
		act("cancel", "Cancel a job", "Tasks that wait are cancelled at once; running ones are told with their worker's next renewal and end when it acknowledges.", cancelJob),
		act("pause", "Pause a job", "No further task starts; running ones go on.", pauseJob),
		act("resume", "Resume a paused job", "", resumeJob),
		{method: "GET", path: "/v1/jobs/{job_id}/tasks", id: "listTasks", tag: "tasks", policy: scope("jobs:read"), handle: (*API).listTasks,
			summary: "List a job's tasks, in the order of the pipeline",
			params:  pages(statusParam, param{in: inQuery, name: "name", about: "Only those of this node.", schema: stringSchema}),
			answers: listOf(protocol.Page[drover.Task]{}, examplePage(exampleTask)), codes: listIn},
		{method: "GET", path: "/v1/jobs/{job_id}/events", id: "listEvents", tag: "jobs", policy: scope("jobs:read"), handle: (*API).listEvents,
			summary: "List or follow a job's events",
			about:   "With `Accept: text/event-stream` the events come as they happen, each with its number as `id`; the stream ends after the final one. A client that was cut off goes on with `Last-Event-ID`. A comment every 15 s keeps the connection alive.",
			params: pages(
				param{in: inQuery, name: "after", about: "Only events with a higher number.", schema: object{{"type", "integer"}, {"minimum", 0}}},
				param{in: inHeader, name: protocol.HeaderLastEventID, about: "On a stream: go on after this event.", schema: object{{"type", "string"}, {"pattern", "^[0-9]+$"}}}),
			answers: append([]answer{
				{status: http.StatusOK, media: protocol.MediaEvents, about: "The events as they happen.", example: exampleStream},
				{status: http.StatusNoContent, about: "On a stream: the job is final and the client has seen every event."},
			}, listOf(protocol.Page[drover.Event]{}, examplePage(exampleEvent))...), codes: listIn},
		{method: "DELETE", path: "/v1/jobs/{job_id}", id: "deleteJob", tag: "jobs", policy: scope("jobs:write"), handle: (*API).deleteJob,
			summary: "Delete a finished job", about: "With all it had: tasks, attempts, events, logs and artifacts. A request that is sent again means the job that has the id by then: do not use the id of a deleted job for another before the delete is answered. Finished jobs leave by themselves after a time: see `/v1/retention`.",
			answers: done("Deleted."), codes: []drover.Code{drover.CodeNotFound, drover.CodeInvalidTransition}},
		{method: "POST", path: "/v1/jobs/{job_id}/rerun", id: "rerunJob", tag: "jobs", policy: scope("jobs:write"), handle: (*API).rerunJob,
			summary: "Run a branch of a job again, or all of it",
			about:   "The tasks that are asked for and whatever stands below them begin new generations; a map below expands again. A finished job is opened again as its next run, and what its failure had cut off goes on. The answer says of every task what becomes of it and why; with `dry_run` nothing else happens.",
			params:  []param{nameHeader, {in: inQuery, name: "dry_run", about: "`true` tells what would be done and does nothing.", schema: object{{"type", "boolean"}, {"default", false}}}},
			body:    body{of: protocol.RerunRequest{}, example: exampleRerun}, answers: ok(drover.Rerun{}, exampleReran),
			codes: []drover.Code{drover.CodeNotFound, drover.CodeInvalidTransition, drover.CodePayloadTooLarge, drover.CodeIdempotencyReused}},
		{method: "GET", path: "/v1/jobs/{job_id}/logs", id: "listJobLogs", tag: "jobs", policy: scope("jobs:read"), handle: (*API).listJobLogs,
			summary: "List what a job's handlers logged, oldest first", params: pages(),
			answers: listOf(protocol.Page[drover.LogLine]{}, examplePage(exampleLine)), codes: listIn},
		{method: "GET", path: "/v1/jobs/{job_id}/artifacts", id: "listJobArtifacts", tag: "artifacts", policy: scope("jobs:read"), handle: (*API).listJobArtifacts,
			summary: "List a job's artifacts, newest first", params: pages(kindParam),
			answers: listOf(protocol.Page[drover.Artifact]{}, examplePage(exampleArtifact)), codes: listIn},

		{method: "GET", path: "/v1/tasks/{task_id}", id: "getTask", tag: "tasks", policy: scope("jobs:read"), handle: (*API).getTask,
			summary: "Get a task", params: []param{tagHeader}, answers: tagged(drover.Task{}, exampleTask), codes: notFound},
		{method: "GET", path: "/v1/tasks/{task_id}/explain", id: "explainTask", tag: "tasks", policy: scope("jobs:read"), handle: (*API).explainTask,
			summary: "Explain why a task does not run", about: "All that keeps it from running, the primary reason first: what it waits for, who has that, its place in line, how long it still takes and what can be done. Of one that runs, who runs it; of one that has ended, how its time was spent.",
			answers: ok(drover.Explanation{}, exampleExplanation), codes: notFound},
		{method: "GET", path: "/v1/jobs/{job_id}/explain", id: "explainJob", tag: "jobs", policy: scope("jobs:read"), handle: (*API).explainJob,
			summary: "Explain what a job waits for", about: "By the task after which most still comes, and up to 20 others that run or could go on next.",
			answers: ok(drover.JobExplanation{}, exampleJobExplanation), codes: notFound},
		{method: "GET", path: "/v1/waits", id: "listWaits", tag: "queues", policy: scope("jobs:read"), handle: (*API).listWaits,
			summary: "List who waits for what", about: "How many tasks wait, for how long, and what most of them wait for. A token of the installation sees every tenant, others their own.",
			params:  []param{{in: inQuery, name: "group_by", about: "What to group by: reason, tenant, queue, or several of them, separated by commas.", schema: object{{"type", "string"}, {"default", "reason"}, {"examples", []any{"reason,tenant,queue"}}}, repeat: true}},
			answers: listOf(protocol.Page[drover.WaitGroup]{}, examplePage(exampleWaits))},
		{method: "GET", path: "/v1/capacity", id: "getCapacity", tag: "queues", policy: scope("jobs:read"), handle: (*API).getCapacity,
			summary: "Get workers and slots by group, and how many workers each queue wants", about: "With the reason, and what two more workers would change.",
			answers: ok(drover.Capacity{}, exampleCapacity)},
		{method: "GET", path: "/v1/tasks/{task_id}/attempts", id: "listAttempts", tag: "tasks", policy: scope("jobs:read"), handle: (*API).listAttempts,
			summary: "List a task's attempts, of every generation", answers: listOf(protocol.Page[drover.Attempt]{}, examplePage(exampleAttempt)), codes: notFound},
		{method: "GET", path: "/v1/tasks/{task_id}/logs", id: "listTaskLogs", tag: "tasks", policy: scope("jobs:read"), handle: (*API).listTaskLogs,
			summary: "List what a task's handler logged, oldest first",
			params:  pages(param{in: inQuery, name: "attempt", about: "Only lines of this attempt.", schema: object{{"type", "integer"}, {"minimum", 1}}}),
			answers: listOf(protocol.Page[drover.LogLine]{}, examplePage(exampleLine)), codes: listIn},
		{method: "POST", path: "/v1/tasks/{task_id}/replay", id: "replayTask", tag: "tasks", policy: scope("jobs:write"), handle: (*API).replayTask,
			summary: "Run a finished task again", about: "Opens a new generation of the task, with the input it had or with another one. A finished job is opened again.",
			params: []param{nameHeader}, body: body{of: protocol.ReplayRequest{}, optional: true, example: exampleReplay}, answers: ok(drover.Task{}, exampleTask),
			codes: []drover.Code{drover.CodeNotFound, drover.CodeInvalidTransition, drover.CodePayloadTooLarge, drover.CodeIdempotencyReused}},
		{method: "POST", path: "/v1/tasks/{task_id}/mark", id: "markTask", tag: "tasks", policy: scope("jobs:write"), handle: (*API).markTask,
			summary: "Say how a task has ended", about: "Its job goes on as if it had ended so. What a worker that has the task reports later is refused. A finished task gets a new generation, and a finished job is opened again; what has run below stays as it is.",
			params: []param{nameHeader}, body: body{of: protocol.MarkRequest{}, example: exampleMark}, answers: ok(drover.Task{}, exampleTask),
			codes: []drover.Code{drover.CodeNotFound, drover.CodeInvalidTransition, drover.CodePayloadTooLarge, drover.CodeIdempotencyReused}},
		{method: "GET", path: "/v1/dead-letters", id: "listDeadLetters", tag: "dead letters", policy: scope("jobs:read"), handle: (*API).listLetters,
			summary: "List dead letters, newest first",
			about:   "Tasks that ended DEAD_LETTER, as their attempts are used up, or FAILED, by a permanent error. Those that were replayed or closed are left out, unless `state` asks for them.",
			params:  pages(letterParams("all")...), answers: listOf(protocol.Page[drover.Letter]{}, examplePage(exampleLetter)), codes: listIn},
		{method: "GET", path: "/v1/dead-letters/groups", id: "groupDeadLetters", tag: "dead letters", policy: scope("jobs:read"), handle: (*API).groupLetters,
			summary: "List kinds of failures, the most frequent first",
			about:   "Dead letters of one fingerprint ended in the same place (pipeline and node, or kind), with the same class and type of error and a message that differs at most in numbers, ids, times, paths and quoted text.",
			params:  pages(letterParams()...), answers: listOf(protocol.Page[drover.LetterGroup]{}, examplePage(exampleGroup)), codes: listIn},
		{method: "GET", path: "/v1/dead-letters/{task_id}", id: "getDeadLetter", tag: "dead letters", policy: scope("jobs:read"), handle: (*API).getLetter,
			summary: "Get a dead letter with what surrounds it", about: "With its input and which generation it is of, the tasks the input is made of, attempts, the last log lines, and the generations of the task with who replayed them.",
			params:  []param{{in: inQuery, name: "generation", about: "Which of the task's generations; the last one that ended badly otherwise.", schema: object{{"type", "integer"}, {"minimum", 1}}}},
			answers: ok(drover.Letter{}, exampleWholeLetter), codes: notFound},
		{method: "POST", path: "/v1/dead-letters/replay", id: "replayDeadLetters", tag: "dead letters", policy: scope("jobs:write"), handle: (*API).replayLetters,
			summary: "Replay dead letters",
			about:   "Each is run again as a new generation of its task; nothing old is pushed again. Up to 100 are replayed before the answer; more, or those with a rate or canaries, by an operation that goes on by itself. One that cannot be replayed is refused, with the reason in its item, and does not keep the others back. With canaries the first ones are replayed and the others only when all of these have succeeded; otherwise the operation stops.",
			params:  []param{nameHeader}, body: body{of: protocol.ReplayLettersRequest{}, example: exampleReplayLetters}, answers: operated(),
			codes: []drover.Code{drover.CodeNotFound, drover.CodePayloadTooLarge, drover.CodeIdempotencyReused}},
		{method: "POST", path: "/v1/dead-letters/close", id: "closeDeadLetters", tag: "dead letters", policy: scope("jobs:write"), handle: (*API).closeLetters,
			summary: "Close dead letters", about: "They stay as they are and leave the list of open ones. A closed one is replayed only with `reopen`.",
			params: []param{nameHeader}, body: body{of: protocol.CloseLettersRequest{}, example: exampleCloseLetters}, answers: operated(),
			codes: []drover.Code{drover.CodeNotFound, drover.CodePayloadTooLarge, drover.CodeIdempotencyReused}},
		{method: "GET", path: "/v1/batch-operations", id: "listOperations", tag: "dead letters", policy: scope("jobs:read"), handle: (*API).listOperations,
			summary: "List batch operations, newest first", about: "They are kept for 30 days after their end.", params: pages(), answers: listOf(protocol.Page[drover.BatchOperation]{}, examplePage(exampleRunning)), codes: list},
		{method: "GET", path: "/v1/batch-operations/{operation_id}", id: "getOperation", tag: "dead letters", policy: scope("jobs:read"), handle: (*API).getOperation,
			summary: "Get a batch operation", answers: ok(drover.BatchOperation{}, exampleOperation, "Retry-After"), codes: notFound},
		{method: "GET", path: "/v1/batch-operations/{operation_id}/items", id: "listOperationItems", tag: "dead letters", policy: scope("jobs:read"), handle: (*API).listOperationItems,
			summary: "List the items of a batch operation", params: pages(param{in: inQuery, name: "state", about: "`refused`: only those that were refused.", schema: object{{"type", "string"}, {"enum", []any{drover.ItemRefused}}}}),
			answers: listOf(protocol.Page[drover.OperationItem]{}, examplePage(exampleOperation.Items[0])), codes: listIn},
		{method: "POST", path: "/v1/batch-operations/{operation_id}/cancel", id: "cancelOperation", tag: "dead letters", policy: scope("jobs:write"), handle: (*API).cancelOperation,
			summary: "Stop a batch operation", about: "What it has done stays done. One that has ended stays as it is.", params: []param{nameHeader},
			body: body{of: protocol.ActionRequest{}, optional: true, example: exampleAction}, answers: ok(drover.BatchOperation{}, exampleOperation, "Retry-After"),
			codes: []drover.Code{drover.CodeNotFound, drover.CodePayloadTooLarge, drover.CodeIdempotencyReused}},

		{method: "POST", path: "/v1/pipelines", id: "registerPipeline", tag: "pipelines", policy: scope("pipelines:write"), handle: (*API).registerPipeline,
			summary: "Register a pipeline", about: "The body is the definition in YAML or JSON. A version never changes: a definition that differs from the newest one becomes the next version, an equal one changes nothing. What is wrong with it is told with line and column, all of it at once.",
			params: []param{{in: inQuery, name: "file", about: "The name of the file, for messages.", schema: stringSchema}},
			body:   body{media: yamlMedia[:2], about: "The definition, at most 16 MiB.", example: exampleDefinition},
			answers: []answer{
				{status: http.StatusCreated, of: drover.Pipeline{}, about: "A new version.", headers: []string{"Location"}, example: examplePipeline},
				{status: http.StatusOK, of: drover.Pipeline{}, about: "The version that is equal.", headers: []string{"Location"}, example: examplePipeline},
			}, codes: []drover.Code{drover.CodePayloadTooLarge, drover.CodeCycle, drover.CodeTooManyTasks, drover.CodeExpression}},
		{method: "GET", path: "/v1/pipelines", id: "listPipelines", tag: "pipelines", policy: scope("jobs:read"), handle: (*API).listPipelines,
			summary: "List pipelines, each in its newest version", params: pages(), answers: listOf(protocol.Page[drover.Pipeline]{}, examplePage(examplePipeline)), codes: list},
		{method: "GET", path: "/v1/pipelines/{pipeline}", id: "getPipeline", tag: "pipelines", policy: scope("jobs:read"), handle: (*API).getPipeline,
			summary: "Get a pipeline with its definition",
			params:  []param{{in: inQuery, name: "version", about: "Which version; the newest otherwise.", schema: object{{"type", "integer"}, {"minimum", 1}}}, tagHeader},
			answers: tagged(drover.Pipeline{}, examplePipeline), codes: notFound},
		{method: "GET", path: "/v1/pipelines/{pipeline}/versions", id: "listPipelineVersions", tag: "pipelines", policy: scope("jobs:read"), handle: (*API).listPipelineVersions,
			summary: "List the versions of a pipeline, newest first", params: pages(), answers: listOf(protocol.Page[drover.Pipeline]{}, examplePage(examplePipeline)), codes: listIn},

		{method: "GET", path: "/v1/queues", id: "listQueues", tag: "queues", policy: scope("jobs:read"), handle: (*API).listQueues,
			summary: "List queues", answers: listOf(protocol.Page[drover.Queue]{}, examplePage(exampleQueue))},
		{method: "GET", path: "/v1/queues/{queue}", id: "getQueue", tag: "queues", policy: scope("jobs:read"), handle: (*API).getQueue,
			summary: "Get a queue", answers: ok(drover.Queue{}, exampleQueue), codes: notFound},

		state("pause", "Pause a queue", "Nothing of it starts, of any tenant; what runs goes on.", pauseQueue),
		state("resume", "Resume a queue", "Tasks of a paused queue start, and a draining one takes jobs again.", resumeQueue),
		state("drain", "Drain a queue", "It takes no new jobs; what is in it runs.", drainQueue),
		{method: "POST", path: "/v1/queues/{queue}/reserve", id: "reserveQueue", tag: "queues", policy: operator(), handle: (*API).reserveQueue, summary: "Keep slots of a queue for classes",
			about: "A share of its slots is kept for a class and those before it, in place of what was kept; none keeps nothing.",
			body:  body{of: protocol.ReserveRequest{}, example: protocol.ReserveRequest{Reserves: []drover.Reserve{{Class: drover.Interactive, Percent: 25}}}}, answers: ok(drover.Queue{}, exampleQueue), codes: []drover.Code{drover.CodeNotFound, drover.CodePayloadTooLarge}},
		{method: "GET", path: "/v1/limits", id: "listLimits", tag: "limits", policy: scope("jobs:read"), handle: (*API).listLimits,
			summary: "List limits", about: "Those of the tenant and those of all tenants together.", answers: listOf(protocol.Page[drover.Limit]{}, examplePage(exampleLimit))},
		{method: "GET", path: "/v1/limits/{limit}", id: "getLimit", tag: "limits", policy: scope("jobs:read"), handle: (*API).getLimit,
			summary: "Get a limit", about: "With who holds it and who changed it.", answers: ok(drover.Limit{}, exampleLimit, "ETag"), codes: notFound},
		{method: "PUT", path: "/v1/limits/{limit}", id: "setLimit", tag: "limits", policy: scope("limits:admin"), handle: (*API).setLimit,
			summary: "Make a limit, or change how much it has",
			about:   "It holds from the commit on: a lowered limit lets nothing start until what is held is below it, and what runs goes on. Limits of the scopes global and queue, and shared ones, need the scope admin and a token of the tenant `system`, which makes no others.",
			params:  append(slices.Clip(limitParams), newParam), body: body{of: drover.NewLimit{}, example: exampleNewLimit}, answers: ok(drover.Limit{}, exampleLimit, "ETag"), codes: limitCodes},
		{method: "DELETE", path: "/v1/limits/{limit}", id: "deleteLimit", tag: "limits", policy: scope("limits:admin"), handle: (*API).deleteLimit,
			summary: "Remove a limit", about: "Nothing is bounded by it any more.",
			params:  append(slices.Clip(limitParams), reasonParam),
			answers: append(ok(drover.Limit{}, exampleLimit), done("It is gone.")...), codes: append([]drover.Code{drover.CodeNotFound}, limitCodes...)},
		{method: "GET", path: "/v1/intake", id: "listIntakeRules", tag: "intake", policy: scope("jobs:read"), handle: (*API).listIntake,
			summary: "List rules of intake", about: "Those of the tenant and those of all tenants together, with how things stand.", answers: listOf(protocol.Page[drover.IntakeRule]{}, examplePage(exampleIntake))},
		{method: "GET", path: "/v1/intake/{rule}", id: "getIntakeRule", tag: "intake", policy: scope("jobs:read"), handle: (*API).getIntake,
			summary: "Get a rule of intake", about: "With who changed it, and when it began and ceased to fire.", answers: ok(drover.IntakeRule{}, exampleIntake, "ETag"), codes: notFound},
		{method: "PUT", path: "/v1/intake/{rule}", id: "setIntakeRule", tag: "intake", policy: scope("limits:admin"), handle: (*API).setIntake,
			summary: "Make a rule of intake, or change it",
			about:   "It is looked at every two seconds. A shared rule needs the scope admin and a token of the tenant `system`.",
			params:  append(slices.Clip(intakeParams), newParam), body: body{of: drover.NewIntakeRule{}, example: exampleNewIntake}, answers: ok(drover.IntakeRule{}, exampleIntake, "ETag"), codes: limitCodes},
		{method: "DELETE", path: "/v1/intake/{rule}", id: "deleteIntakeRule", tag: "intake", policy: scope("limits:admin"), handle: (*API).deleteIntake,
			summary: "Remove a rule of intake", about: "What it refused is taken again.",
			params:  append(slices.Clip(intakeParams), reasonParam),
			answers: append(ok(drover.IntakeRule{}, exampleIntake), done("It is gone.")...), codes: append([]drover.Code{drover.CodeNotFound}, limitCodes...)},
		{method: "GET", path: "/v1/circuits", id: "listCircuits", tag: "circuits", policy: scope("jobs:read"), handle: (*API).listCircuits,
			summary: "List circuits", answers: listOf(protocol.Page[drover.Circuit]{}, examplePage(exampleCircuit))},
		{method: "GET", path: "/v1/circuits/{circuit}", id: "getCircuit", tag: "circuits", policy: scope("jobs:read"), handle: (*API).getCircuit,
			summary: "Get a circuit", answers: ok(drover.Circuit{}, exampleCircuit), codes: notFound},
		{method: "PUT", path: "/v1/circuits/{circuit}", id: "setCircuit", tag: "circuits", policy: scope("admin"), handle: (*API).setCircuit,
			summary: "Set the policy of a circuit", about: "What is left out is the default. A circuit that is not there yet is made; otherwise the first task that names it makes it.",
			body: body{of: drover.CircuitPolicy{}, example: exampleCircuit.Policy}, answers: ok(drover.Circuit{}, exampleCircuit), codes: []drover.Code{drover.CodePayloadTooLarge}},
		{method: "POST", path: "/v1/circuits/{circuit}/open", id: "openCircuit", tag: "circuits", policy: scope("jobs:write"), handle: (*API).openCircuit,
			summary: "Open a circuit by hand", about: "No task that names it starts until it is closed by hand. Those that run go on.",
			body: body{of: protocol.CircuitRequest{}, optional: true, example: protocol.CircuitRequest{Reason: "maintenance"}}, answers: ok(drover.Circuit{}, exampleCircuit), codes: append(notFound, drover.CodePayloadTooLarge)},
		{method: "POST", path: "/v1/circuits/{circuit}/close", id: "closeCircuit", tag: "circuits", policy: scope("jobs:write"), handle: (*API).closeCircuit,
			summary: "Close a circuit", about: "Its tasks are let go little by little, over the length of its pause.", answers: ok(drover.Circuit{}, exampleCircuit), codes: notFound},

		{method: "POST", path: "/v1/workers", id: "openWorker", tag: "workers", policy: scope("workers:run"), handle: (*API).openWorker,
			summary: "Open a worker's session", about: "All leases of the session live until it expires; renewing it puts that off.",
			body:    body{of: drover.NewSession{}, example: exampleNewSession},
			answers: []answer{{status: http.StatusCreated, of: drover.Session{}, about: "Open.", headers: []string{"Location"}, example: exampleSession}}, codes: []drover.Code{drover.CodePayloadTooLarge}},
		{method: "GET", path: "/v1/workers", id: "listWorkers", tag: "workers", policy: scope("jobs:read", "workers:run"), handle: (*API).listWorkers,
			summary: "List open sessions", answers: listOf(protocol.Page[drover.Session]{}, examplePage(exampleSession))},
		{method: "DELETE", path: "/v1/workers/{worker_id}", id: "closeWorker", tag: "workers", policy: scope("workers:run"), handle: (*API).closeWorker,
			summary: "End a session", about: "What it still holds is given back, without using up an attempt.", answers: done("Ended."), codes: notFound},
		{method: "POST", path: "/v1/workers/{worker_id}/renew", id: "renewWorker", tag: "workers", policy: scope("workers:run"), handle: (*API).renewWorker,
			summary: "Renew a session and every lease it holds",
			about:   "Names the leases held, and the number of the last acquire whose answer arrived: leases of earlier acquires that are not named are taken back. The answer tells which to stop. A session that has expired is refused with `lease-lost`: open a new one.",
			body:    body{of: drover.Renewal{}, example: exampleRenewal}, answers: ok(drover.Renewed{}, exampleRenewed), codes: []drover.Code{drover.CodeNotFound, drover.CodeLeaseLost, drover.CodePayloadTooLarge}},
		{method: "POST", path: "/v1/leases/acquire", id: "acquireLeases", tag: "workers", policy: scope("workers:run"), handle: (*API).acquireLeases,
			summary: "Take tasks to run", about: "Waits up to `wait`, at most 20 s, for the first one. An empty list is no error.",
			body: body{of: drover.Acquire{}, example: exampleAcquire}, answers: ok(protocol.AcquireResponse{}, exampleAcquired), codes: []drover.Code{drover.CodeNotFound, drover.CodeLeaseLost, drover.CodePayloadTooLarge}},
		{method: "POST", path: "/v1/leases/settle", id: "settleLeases", tag: "workers", policy: scope("workers:run"), handle: (*API).settleLeases,
			summary: "Report outcomes", about: "Each outcome has its own answer, in its place; one with `lease-lost` was not recorded. Repeating the request is harmless. `acquire` takes further tasks in the same transaction, without waiting.",
			body: body{of: protocol.SettleRequest{}, mild: true, batch: true, example: exampleSettle}, answers: ok(protocol.SettleResponse{}, exampleSettled), codes: []drover.Code{drover.CodeNotFound, drover.CodePayloadTooLarge}},
		{method: "POST", path: "/v1/leases/{task_id}/progress", id: "setProgress", tag: "workers", policy: scope("workers:run"), handle: (*API).setProgress,
			summary: "Say how far a running task is", body: body{of: protocol.ProgressRequest{}, mild: true, example: exampleProgress}, answers: done("Noted."), codes: leased},
		{method: "POST", path: "/v1/leases/{task_id}/heartbeat", id: "sendHeartbeat", tag: "workers", policy: scope("workers:run"), handle: (*API).heartbeat,
			summary: "Say that a running attempt lives, and keep a checkpoint", about: "A task with a `heartbeat` is ended and tried again when none comes in that time. `details` are kept for the next attempt, whose lease has them as `checkpoint`: they outlive a lost lease and a killed worker. One that comes less than 0.1 s after the last is refused as `overloaded`.",
			body: body{of: protocol.HeartbeatRequest{}, mild: true, example: exampleHeartbeat}, answers: done("Noted."), codes: leased},
		{method: "POST", path: "/v1/leases/{task_id}/locks", id: "lock", tag: "workers", policy: scope("workers:run"), handle: (*API).lock,
			summary: "Take permits of a limit while the task runs",
			about: "Waits up to `wait`, at most 20 s, in the order in which handlers asked. An answer that is not `granted` leaves the handler its place in line for half a minute: ask again with the same `number`. " +
				"What was granted is held until it is given back or the attempt ends, however it ends. `token` is higher than every token of this limit before: hand it to what you write to, which refuses whoever comes with a lower one. " +
				"A request that would wait for ever, as those who hold what it wants wait for what this task holds, is refused at once with `deadlock`, and `errors` names the ring.",
			body: body{of: protocol.LockRequest{}, mild: true, example: exampleLockRequest}, answers: ok(drover.Lock{}, exampleLock), codes: lockable},
		{method: "POST", path: "/v1/leases/{task_id}/locks/release", id: "unlock", tag: "workers", policy: scope("workers:run"), handle: (*API).unlock,
			summary: "Give back what a running task has taken", about: "Or what it waits for. Repeating it is harmless, also before the request arrives that it takes back: that gets nothing then.",
			body: body{of: protocol.UnlockRequest{}, mild: true, example: protocol.UnlockRequest{LeaseVersion: 7, Number: 1}}, answers: done("Given back."), codes: leased},
		{method: "POST", path: "/v1/leases/{task_id}/barriers", id: "meet", tag: "workers", policy: scope("workers:run"), handle: (*API).meet,
			summary: "Wait at a barrier until others of the job have come",
			about: "Waits up to `wait`, at most 20 s; where `met` is false ask again with the same `number`, or say `leave`. A task counts while its lease lives. When the last of `parties` has come all go on, " +
				"and an attempt that follows one of theirs goes on at once when it comes to the same `round`.",
			body: body{of: protocol.MeetingRequest{}, mild: true, example: exampleMeetingRequest}, answers: ok(drover.Meeting{}, exampleMeeting), codes: append(slices.Clone(leased), drover.CodeInvalidTransition)},
		{method: "POST", path: "/v1/leases/{task_id}/logs", id: "appendLogs", tag: "workers", policy: scope("workers:run"), handle: (*API).appendLogs,
			summary: "Add lines to the log of a running attempt", about: "A log holds 10 MiB an attempt; `accepted` is smaller than the number of lines when it is full. `at` and `level` may be left out.",
			body: body{of: protocol.LogsRequest{}, mild: true, batch: true, example: exampleLogs}, answers: ok(protocol.LogsResponse{}, protocol.LogsResponse{Accepted: 1}), codes: leased},
		{method: "POST", path: "/v1/leases/{task_id}/artifacts", id: "putArtifact", tag: "workers", policy: scope("workers:run"), handle: (*API).putArtifact,
			summary: "Upload an output of a running attempt", about: "The body is the content. The artifact becomes visible when an outcome that names it is accepted. The same content sent again, after a lost answer say, is the artifact that is there; of different ones with one name the last counts.",
			params: []param{
				{in: inQuery, name: "name", about: "Its file name, unique within the task.", schema: stringSchema, required: true},
				{in: inQuery, name: "kind", about: "What it is for.", schema: stringSchema},
				{in: inQuery, name: "lease_version", about: "That of the lease.", schema: object{{"type", "integer"}, {"format", "int32"}}, required: true},
				{in: inHeader, name: protocol.HeaderArtifactMetadata, about: "Its metadata, as JSON.", schema: stringSchema},
			},
			body:    body{media: []string{"*/*"}, about: "The content; its type is kept.", example: "…"},
			answers: []answer{{status: http.StatusCreated, of: drover.Artifact{}, about: "Stored.", headers: []string{"Location"}, example: exampleArtifact}}, codes: leased},

		{method: "GET", path: "/v1/artifacts", id: "listArtifacts", tag: "artifacts", policy: scope("jobs:read", "workers:run"), handle: (*API).listArtifacts,
			summary: "List artifacts, newest first",
			params: pages(kindParam,
				param{in: inQuery, name: "job_id", about: "Only those of this job.", schema: object{{"$ref", "#/components/schemas/JobID"}}},
				param{in: inQuery, name: "task_id", about: "Only those of this task.", schema: object{{"$ref", "#/components/schemas/TaskID"}}}),
			answers: listOf(protocol.Page[drover.Artifact]{}, examplePage(exampleArtifact)), codes: listIn},
		{method: "GET", path: "/v1/artifacts/{artifact_id}", id: "getArtifact", tag: "artifacts", policy: scope("jobs:read", "workers:run"), handle: (*API).getArtifact,
			summary: "Get what is known about an artifact", params: []param{tagHeader}, answers: tagged(drover.Artifact{}, exampleArtifact), codes: notFound},
		{method: "GET", path: "/v1/artifacts/{artifact_id}/trace", id: "traceArtifact", tag: "artifacts", policy: scope("jobs:read"), handle: (*API).traceArtifact,
			summary: "Say where an artifact comes from and what was made of it",
			about: "Along the data dependencies of its pipeline, and from job to job through results that were used again and inputs that name artifacts. " +
				"At most 1,000 steps and 50 jobs each way.",
			answers: ok(drover.Lineage{}, exampleLineage), codes: notFound},
		{method: "GET", path: "/v1/artifacts/{artifact_id}/content", id: "getArtifactContent", tag: "artifacts", policy: scope("jobs:read", "workers:run"), handle: (*API).getArtifactContent,
			summary: "Get the content of an artifact",
			params:  []param{{in: inHeader, name: "Range", about: "Only these bytes.", schema: object{{"type", "string"}, {"examples", []any{"bytes=0-1023"}}}}, tagHeader},
			answers: []answer{
				{status: http.StatusOK, media: "*/*", about: "The content, in its own type.", headers: []string{"ETag", "Content-Disposition", protocol.HeaderArtifactSHA256}},
				{status: http.StatusPartialContent, media: "*/*", about: "The range asked for.", headers: []string{"ETag", "Content-Disposition", protocol.HeaderArtifactSHA256}},
				{status: http.StatusNotModified, about: "The client's `ETag` is still right."},
			}, codes: notFound},

		{method: "GET", path: "/v1/retention", id: "getRetention", tag: "tokens", policy: scope("jobs:read"), handle: (*API).getRetention,
			summary: "Say how long finished jobs are kept", answers: ok(drover.Retention{}, drover.DefaultRetention)},
		{method: "PATCH", path: "/v1/retention", id: "setRetention", tag: "tokens", policy: scope("admin"), handle: (*API).setRetention,
			summary: "Set how long finished jobs are kept", about: "By how they ended; `0s` is for ever, what is left out stays as it is. A job that has been kept long enough leaves with all it had: tasks, attempts, events, logs and artifacts.",
			body: body{of: protocol.RetentionRequest{}, example: exampleRetention}, answers: ok(drover.Retention{}, drover.DefaultRetention), codes: []drover.Code{drover.CodePayloadTooLarge}},
		{method: "GET", path: "/v1/tenants", id: "listTenants", tag: "tokens", policy: operator(), handle: (*API).listTenants,
			summary: "List tenants", answers: listOf(protocol.Page[drover.Tenant]{}, examplePage(exampleTenant))},
		{method: "PATCH", path: "/v1/tenants/{tenant}", id: "setTenant", tag: "tokens", policy: operator(), handle: (*API).setTenant,
			summary: "Set the weight of a tenant", about: "Its share of the slots of a queue beside that of other tenants who wait there, from 0.01 to 1000; 1 is the default.",
			body: body{of: protocol.TenantRequest{}, example: exampleTenantRequest}, answers: ok(drover.Tenant{}, exampleTenant), codes: []drover.Code{drover.CodeNotFound, drover.CodePayloadTooLarge}},
		{method: "GET", path: "/v1/tokens", id: "listTokens", tag: "tokens", policy: scope("tokens:admin"), handle: (*API).listTokens,
			summary: "List the tenant's tokens, without their secrets", answers: listOf(protocol.Page[drover.Token]{}, examplePage(exampleToken))},
		{method: "POST", path: "/v1/tokens", id: "createToken", tag: "tokens", policy: scope("tokens:admin"), handle: (*API).createToken,
			summary: "Make a token", about: "Its secret is in this answer and nowhere else. A token permits no more than the one that makes it.",
			body:    body{of: protocol.NewToken{}, example: exampleNewToken},
			answers: []answer{{status: http.StatusCreated, of: drover.Token{}, about: "Made.", headers: []string{"Location"}, example: exampleMadeToken}}, codes: []drover.Code{drover.CodePayloadTooLarge}},
		{method: "DELETE", path: "/v1/tokens/{token_id}", id: "revokeToken", tag: "tokens", policy: scope("tokens:admin"), handle: (*API).revokeToken,
			summary: "End a token", answers: done("Ended."), codes: notFound},
		{method: "GET", path: "/v1/whoami", id: "whoAmI", tag: "tokens", policy: anyToken(), handle: (*API).whoAmI,
			summary: "Say whom the token speaks for", answers: ok(protocol.WhoAmI{}, exampleWho)},

		health("getLiveness", "/livez", "Say whether the process lives", (*API).livez),
		health("getReadiness", "/readyz", "Say whether the server can work", (*API).readyz, exclude),
		health("getHealth", "/healthz", "Say whether the server can work, in JSON", (*API).healthz, exclude),
		{method: "GET", path: "/version", id: "getVersion", tag: "server", policy: public(), handle: (*API).version,
			summary: "Say what the server runs", answers: ok(protocol.Version{}, exampleVersion)},
		{method: "GET", path: "/openapi.json", id: "getOpenAPI", tag: "server", policy: public(), handle: (*API).openapiJSON,
			summary: "This document, in JSON", answers: []answer{{status: http.StatusOK, of: map[string]any{}, about: "An OpenAPI 3.1 document.", headers: []string{"ETag"}}}},
		{method: "GET", path: "/openapi.yaml", id: "getOpenAPIYAML", tag: "server", policy: public(), handle: (*API).openapiYAML,
			summary: "This document, in YAML", answers: []answer{{status: http.StatusOK, media: protocol.MediaYAML, about: "An OpenAPI 3.1 document.", headers: []string{"ETag"}}}},
		{method: "GET", path: "/docs", id: "getDocs", tag: "server", policy: public(), handle: (*API).docs,
			summary: "This document, to be read in a browser", answers: []answer{{status: http.StatusOK, media: "text/html", about: "A page that loads nothing else.", headers: []string{"ETag"}}}},
	}
}

func itoa(n int) string { return strconv.Itoa(n) }
