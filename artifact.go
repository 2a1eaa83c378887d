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
}

// URIOf returns the URI of an artifact.
func URIOf(id ArtifactID) string { return "artifact://" + id.String() }
