package drover

import (
	"encoding/json"
	"time"
)

// Artifact is an immutable output with a deterministic identity.
type Artifact struct {
	ID         ArtifactID `json:"artifact_id"`
	JobID      JobID      `json:"job_id,omitzero"`
	TaskID     TaskID     `json:"task_id,omitzero"`
	Generation int        `json:"generation,omitempty"`
	// Name is a file name, unique within a task and generation.
	Name string `json:"name"`
	// Kind says what it is for, such as "dataset-manifest"; may be empty.
	Kind string `json:"kind,omitempty"`
	// URI is "artifact://" and the id; URIOf makes it.
	URI    string `json:"uri"`
	SHA256 string `json:"sha256"` // 64 hexadecimal digits
	Size   int64  `json:"size"`   // bytes
	// MediaType is a MIME type; "application/octet-stream" when nobody said.
	MediaType string          `json:"media_type"`
	Metadata  json.RawMessage `json:"metadata,omitempty"`
	CreatedAt time.Time       `json:"created_at,omitzero"`
	// Owner is who created the job that made it.
	Owner string `json:"owner,omitempty"`
	// Identity is the SHA-256 of everything that it depends on, 64 hexadecimal digits:
	// of artifacts of tasks whose results are used again.
	Identity string `json:"identity,omitempty"`
}

// Lineage is where an artifact comes from and what was made of it.
type Lineage struct {
	Artifact Artifact `json:"artifact"`
	// Up is what it was made of, Down what was made of it, nearest first.
	Up   []LineageStep `json:"up"`
	Down []LineageStep `json:"down"`
	// Truncated says that there is more than was looked at.
	Truncated bool `json:"truncated,omitempty"`
}

// LineageStep is a task on the way from or to an artifact.
type LineageStep struct {
	// Depth is how many steps away it is, from 1.
	Depth    int    `json:"depth"`
	JobID    JobID  `json:"job_id"`
	Pipeline string `json:"pipeline,omitempty"`
	Version  int    `json:"pipeline_version,omitempty"`
	// Task is its name; of a job of one task, its kind.
	Task string `json:"task"`
	// Index is the element of a map; -1 stands for all of them.
	Index int `json:"index"`
	// Via is how it hangs together with the step before: data, reuse, or input (the
	// input of its job names the artifact).
	Via string `json:"via"`
	// Of is the task before.
	Of string `json:"of"`
	// Artifacts are what it made, at most a hundred of them.
	Artifacts []Artifact `json:"artifacts,omitempty"`
}

// URIOf returns the URI of an artifact.
func URIOf(id ArtifactID) string { return "artifact://" + id.String() }
