package drover

// Rerun is what a rerun of a job does to its tasks, or, of a preview, would do.
type Rerun struct {
	JobID JobID `json:"job_id"`
	// Run is the run of the job in which its tasks run again.
	Run int `json:"run"`
	// DryRun says that nothing was done.
	DryRun bool `json:"dry_run,omitempty"`
	// Repeated says that an earlier request with the same id has done it; Tasks are empty.
	Repeated bool `json:"repeated,omitempty"`
	// Tasks are all tasks of the job in the order of its graph.
	Tasks []RerunTask `json:"tasks"`
}

// RerunTask is what a rerun does to a task, or to elements of a map that follow each
// other.
type RerunTask struct {
	Task string `json:"task"`
	// First and Last are the indexes of the elements, 0 of a task that is not mapped, and
	// -1 of a map that has not expanded, or expands again.
	First int `json:"first"`
	Last  int `json:"last"`
	// Mapped says that the task is a map.
	Mapped bool `json:"mapped,omitempty"`
	// Was is how it stands before.
	Was Status `json:"was,omitzero"`
	// Does is what becomes of it, and Why the reason.
	Does RerunDoes `json:"does"`
	Why  string    `json:"why"`
}

// RerunDoes is what a rerun does to a task.
type RerunDoes string

// What a rerun does.
const (
	RerunRuns     RerunDoes = "runs"      // it begins anew, and runs when its turn comes
	RerunReused   RerunDoes = "reused"    // it begins anew and ends at once with a result that is there
	RerunMayReuse RerunDoes = "may_reuse" // it begins anew, and ends with a result that is there if its input comes to the same
	RerunExpands  RerunDoes = "expands"   // the map expands again, over the list it is given then
	RerunWaits    RerunDoes = "waits"     // it waits already, and goes on
	RerunGone     RerunDoes = "gone"      // it counts no more, unless its map makes it again
	RerunDormant  RerunDoes = "dormant"   // it counts no more, until it is called again
	RerunStays    RerunDoes = "stays"     // nothing becomes of it
)
