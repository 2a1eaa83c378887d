package engine

import (
	"context"
	"io"

	"github.com/drover-dev/drover"
)

func (e *Engine) Job(ctx context.Context, c Caller, id drover.JobID) (drover.Job, error)  { panic("x") }
func (e *Engine) Jobs(ctx context.Context, c Caller, q JobQuery) ([]drover.Job, error)    { panic("x") }
func (e *Engine) Tasks(ctx context.Context, c Caller, q TaskQuery) ([]drover.Task, error) { panic("x") }
func (e *Engine) Task(ctx context.Context, c Caller, id drover.TaskID) (drover.Task, error) {
	panic("x")
}
func (e *Engine) Attempts(ctx context.Context, c Caller, id drover.TaskID) ([]drover.Attempt, error) {
	panic("x")
}
func (e *Engine) Events(ctx context.Context, c Caller, id drover.JobID, after int64, limit int) ([]drover.Event, error) {
	panic("x")
}
func (e *Engine) Queues(ctx context.Context, c Caller) ([]drover.Queue, error)     { panic("x") }
func (e *Engine) Sessions(ctx context.Context, c Caller) ([]drover.Session, error) { panic("x") }
func (e *Engine) SetProgress(ctx context.Context, c Caller, h drover.Held, p drover.Progress) error {
	panic("x")
}
func (e *Engine) AppendLogs(ctx context.Context, c Caller, h drover.Held, lines []drover.LogLine) (int, error) {
	panic("x")
}
func (e *Engine) Logs(ctx context.Context, c Caller, q LogQuery) ([]drover.LogLine, string, error) {
	panic("x")
}
func (e *Engine) StageArtifact(ctx context.Context, c Caller, h drover.Held, meta drover.Artifact, r io.Reader) (drover.Artifact, error) {
	panic("x")
}
func (e *Engine) Artifact(ctx context.Context, c Caller, id drover.ArtifactID) (drover.Artifact, error) {
	panic("x")
}
func (e *Engine) Artifacts(ctx context.Context, c Caller, q ArtifactQuery) ([]drover.Artifact, error) {
	panic("x")
}
func (e *Engine) OpenArtifact(ctx context.Context, c Caller, id drover.ArtifactID) (Blob, drover.Artifact, error) {
	panic("x")
}
func (e *Engine) Ping(ctx context.Context) error { panic("x") }
