package engine

import (
	"context"
	"io"

	"github.com/drover-dev/drover"
)

func (e *Engine) Submit(ctx context.Context, c Caller, jobs []drover.NewJob) ([]drover.Submitted, error) {
	panic("x")
}
func (e *Engine) Job(ctx context.Context, c Caller, id drover.JobID) (drover.Job, error) { panic("x") }
func (e *Engine) Jobs(ctx context.Context, c Caller, q JobQuery) ([]drover.Job, error)   { panic("x") }
func (e *Engine) Cancel(ctx context.Context, c Caller, id drover.JobID, r Request) (drover.Job, error) {
	panic("x")
}
func (e *Engine) Pause(ctx context.Context, c Caller, id drover.JobID, r Request) (drover.Job, error) {
	panic("x")
}
func (e *Engine) Resume(ctx context.Context, c Caller, id drover.JobID, r Request) (drover.Job, error) {
	panic("x")
}
func (e *Engine) Tasks(ctx context.Context, c Caller, q TaskQuery) ([]drover.Task, error) { panic("x") }
func (e *Engine) Task(ctx context.Context, c Caller, id drover.TaskID) (drover.Task, error) {
	panic("x")
}
func (e *Engine) Attempts(ctx context.Context, c Caller, id drover.TaskID) ([]drover.Attempt, error) {
	panic("x")
}
func (e *Engine) Replay(ctx context.Context, c Caller, id drover.TaskID, r ReplayRequest) (drover.Task, error) {
	panic("x")
}
func (e *Engine) Events(ctx context.Context, c Caller, id drover.JobID, after int64, limit int) ([]drover.Event, error) {
	panic("x")
}
func (e *Engine) RegisterPipeline(ctx context.Context, c Caller, file string, src []byte) (drover.Pipeline, error) {
	panic("x")
}
func (e *Engine) Pipeline(ctx context.Context, c Caller, name string, version int) (drover.Pipeline, error) {
	panic("x")
}
func (e *Engine) Pipelines(ctx context.Context, c Caller, name, after string, limit int) ([]drover.Pipeline, error) {
	panic("x")
}
func (e *Engine) Queues(ctx context.Context, c Caller) ([]drover.Queue, error) { panic("x") }
func (e *Engine) OpenSession(ctx context.Context, c Caller, n drover.NewSession) (drover.Session, error) {
	panic("x")
}
func (e *Engine) CloseSession(ctx context.Context, c Caller, id drover.SessionID) error { panic("x") }
func (e *Engine) Sessions(ctx context.Context, c Caller) ([]drover.Session, error)      { panic("x") }
func (e *Engine) Renew(ctx context.Context, c Caller, id drover.SessionID, r drover.Renewal) (drover.Renewed, error) {
	panic("x")
}
func (e *Engine) Acquire(ctx context.Context, c Caller, a drover.Acquire) ([]drover.Lease, error) {
	panic("x")
}
func (e *Engine) Settle(ctx context.Context, batch []Settlement) []SettleResult { panic("x") }
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
func (e *Engine) Authenticate(ctx context.Context, secret string) (Caller, error) { panic("x") }
func (e *Engine) CreateToken(ctx context.Context, c Caller, t drover.Token) (drover.Token, error) {
	panic("x")
}
func (e *Engine) Tokens(ctx context.Context, c Caller) ([]drover.Token, error)       { panic("x") }
func (e *Engine) RevokeToken(ctx context.Context, c Caller, id drover.TokenID) error { panic("x") }
func (e *Engine) EnsureTenant(ctx context.Context, name string) (Caller, error)      { panic("x") }
func (e *Engine) Ping(ctx context.Context) error                                     { panic("x") }
func (e *Engine) EndInProcessSessions(ctx context.Context) (int, error)              { panic("x") }
func (e *Engine) ReapOnce(ctx context.Context) (int, error)                          { panic("x") }
func (e *Engine) AdmitOnce(ctx context.Context) (int, error)                         { panic("x") }
func (e *Engine) TimersOnce(ctx context.Context) (int, error)                        { panic("x") }
func (e *Engine) SweepOnce(ctx context.Context) (int, error)                         { panic("x") }
func (e *Engine) ExpireOnce(ctx context.Context) (int, error)                        { panic("x") }
func (e *Engine) CleanOnce(ctx context.Context) (int, error)                         { panic("x") }
func (e *Engine) VacuumOnce(ctx context.Context) (int, error)                        { panic("x") }
