package api

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"math"
	"mime"
	"net/http"
	"path"
	"strings"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/protocol"
)

// maxMetadata bounds the metadata header of an upload in bytes.
const maxMetadata = 16 << 10

func (a *API) putArtifact(w http.ResponseWriter, r *request) error {
	id, err := r.taskID()
	if err != nil {
		return err
	}
	lease, err := r.whole("lease_version", 0, 0, math.MaxInt32)
	if err != nil {
		return err
	}
	meta := drover.Artifact{Name: r.query.Get("name"), Kind: r.query.Get("kind"), MediaType: r.Header.Get("Content-Type")}
	if meta.Name == "" {
		return invalidQuery("name", "is empty; name the file")
	}
	if meta.MediaType == "" {
		meta.MediaType = "application/octet-stream"
	}
	m, params, err := mime.ParseMediaType(meta.MediaType)
	if err != nil || !strings.Contains(m, "/") || len(meta.MediaType) > 255 {
		return errMedia{invalidQuery("Content-Type", "is not a media type; send for example video/mp4, or application/octet-stream")}
	}
	meta.MediaType = mime.FormatMediaType(m, params)
	if given := r.Header.Get(protocol.HeaderArtifactMetadata); given != "" {
		if len(given) > maxMetadata {
			return invalidQuery(protocol.HeaderArtifactMetadata, "is longer than 16 KiB; put large data into an artifact of its own")
		}
		if err := checkJSON([]byte(given)); err != nil {
			var e *drover.Error
			if errors.As(err, &e) {
				return invalidQuery(protocol.HeaderArtifactMetadata, "is not JSON: "+e.Fields[0].Field+": "+e.Fields[0].Message)
			}
			return err
		}
		meta.Metadata = []byte(given)
	}
	if r.ContentLength > a.MaxArtifact {
		return tooLarge(a.MaxArtifact)
	}
	body := &slowly{rc: http.NewResponseController(w), body: http.MaxBytesReader(w, r.Body, a.MaxArtifact)}
	art, err := a.engine.StageArtifact(r.Context(), r.caller, drover.Held{TaskID: id, LeaseVersion: int32(lease)}, meta, body)
	switch {
	case errors.As(body.err, new(*http.MaxBytesError)):
		return tooLarge(a.MaxArtifact)
	case body.err != nil:
		return errNotWhole()
	case err != nil:
		return err
	}
	extend(w, answerTime)
	w.Header().Set("Location", "/v1/artifacts/"+art.ID.String())
	return a.reply(w, r, http.StatusCreated, art)
}

func (a *API) listArtifacts(w http.ResponseWriter, r *request) error {
	job, err := queryID(r, "job_id", drover.ParseJobID)
	if err != nil {
		return err
	}
	task, err := queryID(r, "task_id", drover.ParseTaskID)
	if err != nil {
		return err
	}
	return a.artifacts(w, r, engine.ArtifactQuery{Job: job, Task: task, Kind: r.query.Get("kind")})
}

func (a *API) artifacts(w http.ResponseWriter, r *request, q engine.ArtifactQuery) error {
	p, err := a.page(r, len(drover.ID{}))
	if err != nil {
		return err
	}
	q.After, q.Limit = drover.ArtifactID(p.idOf()), p.limit+1
	items, err := a.engine.Artifacts(r.Context(), r.caller, q)
	if err != nil {
		return err
	}
	return listed(a, w, r, p, items, func(x drover.Artifact) []byte { return x.ID[:] })
}

func (r *request) artifactID() (drover.ArtifactID, error) {
	return pathID(r, "artifact_id", drover.ParseArtifactID)
}

func (a *API) getArtifact(w http.ResponseWriter, r *request) error {
	id, err := r.artifactID()
	if err != nil {
		return err
	}
	art, err := a.engine.Artifact(r.Context(), r.caller, id)
	if err != nil {
		return err
	}
	return a.replyTagged(w, r, art)
}

func (a *API) traceArtifact(w http.ResponseWriter, r *request) error {
	id, err := r.artifactID()
	if err != nil {
		return err
	}
	lineage, err := a.engine.Trace(r.Context(), r.caller, id)
	if err != nil {
		return err
	}
	return a.reply(w, r, http.StatusOK, lineage)
}

// getArtifactContent sends the bytes, whole or in ranges. They are somebody's
// data and never a page of this site: always to be saved, never sniffed,
// sandboxed.
func (a *API) getArtifactContent(w http.ResponseWriter, r *request) error {
	id, err := r.artifactID()
	if err != nil {
		return err
	}
	blob, art, err := a.engine.OpenArtifact(r.Context(), r.caller, id)
	if err != nil {
		return err
	}
	defer blob.Close()
	h := w.Header()
	h.Set("Content-Type", or(art.MediaType, "application/octet-stream"))
	h.Set("Content-Disposition", attachment(art.Name))
	h.Set("Cache-Control", "private, immutable, max-age=3600")
	if art.SHA256 != "" {
		h.Set("ETag", `"`+art.SHA256+`"`)
		h.Set(protocol.HeaderArtifactSHA256, art.SHA256)
		if sum, err := hex.DecodeString(art.SHA256); err == nil {
			h.Set("Repr-Digest", "sha-256=:"+base64.StdEncoding.EncodeToString(sum)+":")
		}
	}
	out := &patient{ResponseWriter: w}
	http.ServeContent(out, r.Request, "", art.CreatedAt, blob)
	if out.outOfRange {
		a.refuseRange(w, r, art.Size)
	}
	return nil
}

func (a *API) refuseRange(w http.ResponseWriter, r *request, size int64) {
	p := protocol.FromError(invalidQuery("Range", "is not within the "+itoa(int(size))+" bytes there are"))
	p.Status, p.Title = http.StatusRequestedRangeNotSatisfiable, statusTitles[http.StatusRequestedRangeNotSatisfiable]
	p.Instance, p.TraceID = r.URL.EscapedPath(), traceOf(r.Context())
	w.Header().Del("Content-Disposition")
	writeProblem(w, r.Request, p)
}

// attachment returns a Content-Disposition with the last part of a name.
func attachment(name string) string {
	name = path.Base(strings.ReplaceAll(name, `\`, "/"))
	if name == "." || name == "/" {
		return "attachment"
	}
	if v := mime.FormatMediaType("attachment", map[string]string{"filename": name}); v != "" {
		return v
	}
	return "attachment"
}

// patient is an answer whose every write has a deadline of its own. It holds
// back the text that net/http has for a bad range.
type patient struct {
	http.ResponseWriter
	outOfRange bool
}

// WriteHeader begins the answer, unless it is the one held back.
func (p *patient) WriteHeader(status int) {
	if status == http.StatusRequestedRangeNotSatisfiable {
		p.outOfRange = true
		return
	}
	p.ResponseWriter.WriteHeader(status)
}

// Write writes within answerTime.
func (p *patient) Write(b []byte) (int, error) {
	if p.outOfRange {
		return len(b), nil
	}
	extend(p.ResponseWriter, answerTime)
	return p.ResponseWriter.Write(b)
}
