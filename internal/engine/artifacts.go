package engine

import (
	"bytes"
	"cmp"
	"context"
	crand "crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/store"
)

// Limits of artifacts.
const (
	MaxArtifact    = 5 << 30 // bytes
	maxFileName    = 255
	maxMediaType   = 255
	maxMetadata    = 16 << 10
	keepBytes      = 48 * time.Hour // of an upload that no artifact has; longer than a staged row is kept
	bytesAtOnce    = 1000
	defaultType    = "application/octet-stream"
	uploads        = "tmp" // folder of uploads under way
	artifactFolder = 0o700
)

// bytesPath is where the bytes with this SHA-256 are kept.
func bytesPath(sum []byte) string {
	h := hex.EncodeToString(sum)
	return h[:2] + "/" + h
}

// root opens the folder of artifacts, made at its first use.
func (e *Engine) root() (*os.Root, error) {
	if e.opts.Artifacts == "" {
		return nil, drover.Errorf(drover.CodeForbidden, "this server keeps no artifacts: it was started without a folder for them")
	}
	if err := os.MkdirAll(e.opts.Artifacts, artifactFolder); err != nil {
		return nil, err
	}
	return os.OpenRoot(e.opts.Artifacts)
}

// holder returns whose lease it is: of a task of the caller's tenant, or of any
// where the caller serves all.
func holder(ctx context.Context, tx store.Tx, c Caller, h drover.Held) (store.Holder, error) {
	var rows []store.Holder
	if err := tx.Pipe(ctx, store.LeaseHolder(h.TaskID, h.LeaseVersion, &rows)); err != nil {
		return store.Holder{}, err
	}
	if len(rows) == 0 || (rows[0].Tenant != c.Tenant && !c.System) {
		return store.Holder{}, leaseLost(h)
	}
	return rows[0], nil
}

func leaseLost(h drover.Held) error {
	return drover.Errorf(drover.CodeLeaseLost, "task %s is not leased under lease_version %d any more; stop it", h.TaskID, h.LeaseVersion)
}

// checkArtifact validates what an upload says about itself, and fills in the media type.
func checkArtifact(a *drover.Artifact) error {
	var bad []drover.FieldError
	say := func(field, format string, args ...any) {
		bad = append(bad, drover.FieldError{Field: field, Message: fmt.Sprintf(format, args...)})
	}
	if !fs.ValidPath(a.Name) || a.Name == "." || len(a.Name) > maxFileName || !clean(a.Name) || strings.Contains(a.Name, `\`) {
		say("name", "%q must be a relative path of at most %d bytes, without . or .. or \\ or control characters", cut(a.Name), maxFileName)
	}
	if a.Kind != "" {
		checkName(say, "kind", a.Kind)
	}
	a.MediaType = cmp.Or(a.MediaType, defaultType)
	if len(a.MediaType) > maxMediaType || !clean(a.MediaType) {
		say("media_type", "must have at most %d bytes", maxMediaType)
	}
	if len(a.Metadata) > maxMetadata || (len(a.Metadata) > 0 && !json.Valid(a.Metadata)) {
		say("metadata", "must be JSON of at most %d bytes", maxMetadata)
	}
	if len(bad) > 0 {
		return &drover.Error{Code: drover.CodeValidation, Detail: "the artifact is not valid", Fields: bad}
	}
	return nil
}

// StageArtifact stores an output of a running attempt. It becomes visible when
// an outcome of the attempt that names it is accepted. The same once more, by a client
// whose answer was lost, is the one that is there; of different ones with one name the
// last counts. A SHA256 in meta is compared.
func (e *Engine) StageArtifact(ctx context.Context, c Caller, h drover.Held, meta drover.Artifact, r io.Reader) (drover.Artifact, error) {
	if err := checkArtifact(&meta); err != nil {
		return drover.Artifact{}, err
	}
	// Nothing is read for a lease that is lost already.
	if err := e.db.Read(ctx, func(tx store.Tx) error { _, err := holder(ctx, tx, c, h); return err }); err != nil {
		return drover.Artifact{}, fmt.Errorf("save artifact: %w", err)
	}
	sum, size, err := e.keep(ctx, r)
	if err != nil {
		return drover.Artifact{}, fmt.Errorf("save artifact: %w", err)
	}
	if want := strings.ToLower(meta.SHA256); want != "" && want != hex.EncodeToString(sum) {
		return drover.Artifact{}, &drover.Error{Code: drover.CodeValidation, Detail: "the artifact is not valid",
			Fields: []drover.FieldError{{Field: "sha256", Message: "the bytes that came have the SHA-256 " + hex.EncodeToString(sum)}}}
	}
	row := store.ArtifactRow{ID: drover.ArtifactID(e.db.NewID()), Task: h.TaskID, LeaseVersion: h.LeaseVersion, Name: meta.Name, Kind: meta.Kind,
		MediaType: meta.MediaType, SHA256: sum, Size: size, Metadata: meta.Metadata}
	err = e.db.Write(ctx, func(tx store.Tx) error {
		lease, err := holder(ctx, tx, c, h)
		if err != nil {
			return err
		}
		row.Tenant, row.Job, row.Generation, row.CreatedAt = lease.Tenant, lease.Job, lease.Generation, max(e.now(), lease.ClaimedAt)
		var there []store.ArtifactRow
		if err := tx.Pipe(ctx, store.StagedArtifact(row, lease.ClaimedAt, &there)); err != nil {
			return err
		}
		for _, a := range there {
			if bytes.Equal(a.SHA256, row.SHA256) && a.Kind == row.Kind && a.MediaType == row.MediaType && bytes.Equal(a.Metadata, row.Metadata) {
				row = a
				row.Owner, row.Identity = "", nil // as for one that was just made
				return nil
			}
		}
		return tx.Pipe(ctx, store.StageArtifact(row, lease.ClaimedAt)...)
	})
	if err != nil {
		return drover.Artifact{}, fmt.Errorf("save artifact: %w", err)
	}
	return showArtifact(row), nil
}

func showArtifact(r store.ArtifactRow) drover.Artifact {
	a := drover.Artifact{ID: r.ID, JobID: r.Job, TaskID: r.Task, Generation: int(r.Generation), Name: r.Name, Kind: r.Kind, URI: drover.URIOf(r.ID),
		SHA256: hex.EncodeToString(r.SHA256), Size: r.Size, MediaType: r.MediaType, CreatedAt: r.CreatedAt.Time()}
	if len(r.Metadata) > 0 {
		a.Metadata = r.Metadata
	}
	if a.Owner = r.Owner; len(r.Identity) > 0 {
		a.Identity = hex.EncodeToString(r.Identity)
	}
	return a
}

// keep writes r's bytes to the place of their SHA-256. A power cut leaves them
// there whole or not at all.
func (e *Engine) keep(ctx context.Context, r io.Reader) (sum []byte, size int64, err error) {
	root, err := e.root()
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = root.Close() }()
	if err := root.MkdirAll(uploads, artifactFolder); err != nil {
		return nil, 0, err
	}
	name := uploads + "/" + crand.Text()
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, 0, err
	}
	defer func() {
		if err != nil {
			_ = root.Remove(name) // what is left is removed by CleanArtifactsOnce
		}
	}()
	hash := sha256.New()
	size, err = io.Copy(io.MultiWriter(f, hash), &io.LimitedReader{R: &whileLive{ctx, r}, N: MaxArtifact + 1})
	if err == nil && size > MaxArtifact {
		err = drover.Errorf(drover.CodePayloadTooLarge, "the artifact has more than %d bytes", int64(MaxArtifact))
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, 0, err
	}
	sum = hash.Sum(nil)
	path := bytesPath(sum)
	if err = root.MkdirAll(path[:2], artifactFolder); err != nil {
		return nil, 0, err
	}
	// Over an equal one, whose age begins anew: nobody may clean it now.
	if err = root.Rename(name, path); err != nil {
		return nil, 0, err
	}
	for _, dir := range []string{path[:2], "."} {
		if err = syncFolder(root, dir); err != nil {
			return nil, 0, err
		}
	}
	return sum, size, nil
}

// syncFolder makes the names in a folder last.
func syncFolder(root *os.Root, name string) error {
	d, err := root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// whileLive reads until its context ends.
type whileLive struct {
	ctx context.Context // of the one call it lives for
	r   io.Reader
}

// Read reads from the reader below.
func (w *whileLive) Read(b []byte) (int, error) {
	if w.ctx.Err() != nil {
		return 0, context.Cause(w.ctx)
	}
	return w.r.Read(b)
}

func (e *Engine) artifactRow(ctx context.Context, c Caller, id drover.ArtifactID) (store.ArtifactRow, error) {
	var rows []store.ArtifactRow
	if err := e.db.Read(ctx, func(tx store.Tx) error { rows = nil; return tx.Pipe(ctx, store.OneArtifact(id, &rows)) }); err != nil {
		return store.ArtifactRow{}, fmt.Errorf("read artifact: %w", err)
	}
	if len(rows) == 0 || (rows[0].Tenant != c.Tenant && !c.System) {
		return store.ArtifactRow{}, notFound("artifact", id)
	}
	return rows[0], nil
}

// Artifact returns what is known of a visible artifact.
func (e *Engine) Artifact(ctx context.Context, c Caller, id drover.ArtifactID) (drover.Artifact, error) {
	row, err := e.artifactRow(ctx, c, id)
	if err != nil {
		return drover.Artifact{}, err
	}
	return showArtifact(row), nil
}

// Artifacts returns visible artifacts, newest first.
func (e *Engine) Artifacts(ctx context.Context, c Caller, q ArtifactQuery) (out []drover.Artifact, err error) {
	if !clean(q.Kind) {
		return []drover.Artifact{}, nil
	}
	below := q.After
	if below.IsZero() {
		below = drover.ArtifactID(store.LastID)
	}
	n := pageSize(q.Limit)
	err = e.db.Read(ctx, func(tx store.Tx) error {
		out = []drover.Artifact{}
		var rows []store.ArtifactRow
		job := q.Job
		if !job.IsZero() {
			if _, err := head(ctx, tx, c, job); err != nil {
				return err
			}
		}
		if !q.Task.IsZero() {
			s, err := oneTask(ctx, tx, c, q.Task)
			if err != nil {
				return err
			}
			if !job.IsZero() && s.Job != job {
				return nil
			}
			job = s.Job
		}
		find := store.TenantArtifacts(c.Tenant, q.Kind, below, n, &rows)
		if !job.IsZero() {
			find = store.JobArtifacts(job, q.Task, q.Kind, below, n, &rows)
		}
		if err := tx.Pipe(ctx, find); err != nil {
			return err
		}
		for _, r := range rows {
			out = append(out, showArtifact(r))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list artifacts: %w", err)
	}
	return out, nil
}

// OpenArtifact opens the bytes of a visible artifact. The caller closes them.
func (e *Engine) OpenArtifact(ctx context.Context, c Caller, id drover.ArtifactID) (Blob, drover.Artifact, error) {
	row, err := e.artifactRow(ctx, c, id)
	if err != nil {
		return nil, drover.Artifact{}, err
	}
	root, err := e.root()
	if err != nil {
		return nil, drover.Artifact{}, fmt.Errorf("open artifact: %w", err)
	}
	defer func() { _ = root.Close() }()
	f, err := root.Open(bytesPath(row.SHA256))
	if err != nil {
		return nil, drover.Artifact{}, fmt.Errorf("open artifact %s: its bytes are missing: %w", id, err)
	}
	return f, showArtifact(row), nil
}

// CleanArtifactsOnce removes bytes that no artifact has any more: of attempts
// that failed, of uploads that broke off. It returns how many files it removed.
func (e *Engine) CleanArtifactsOnce(ctx context.Context) (int, error) {
	if e.opts.Artifacts == "" {
		return 0, nil
	}
	root, err := e.root()
	if err != nil {
		return 0, fmt.Errorf("clean artifacts: %w", err)
	}
	defer func() { _ = root.Close() }()
	total := 0
	folders, err := fs.ReadDir(root.FS(), ".")
	for _, d := range folders {
		if !d.IsDir() {
			continue
		}
		var n int
		if n, err = e.cleanFolder(ctx, root, d.Name()); err != nil {
			break
		}
		total += n
	}
	if err != nil {
		return total, fmt.Errorf("clean artifacts: %w", err)
	}
	return total, nil
}

// cleanFolder removes old files of a folder that no artifact has. Their age is by the
// store's clock: beside keepBytes the difference to the file system's is small.
func (e *Engine) cleanFolder(ctx context.Context, root *os.Root, folder string) (int, error) {
	files, err := fs.ReadDir(root.FS(), folder)
	if err != nil {
		return 0, err
	}
	var old []string
	var sums [][]byte
	for _, f := range files {
		info, err := f.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		sum, err := hex.DecodeString(f.Name())
		if !info.Mode().IsRegular() || e.db.Now().Sub(info.ModTime()) < keepBytes || (folder != uploads && (err != nil || len(sum) != sha256.Size)) {
			continue
		}
		old = append(old, folder+"/"+f.Name())
		if folder != uploads {
			sums = append(sums, sum)
		}
	}
	used := map[string]bool{}
	for part := range slices.Chunk(sums, bytesAtOnce) {
		if err := e.db.Read(ctx, func(tx store.Tx) error { return tx.Pipe(ctx, store.BytesInUse(part, used)) }); err != nil {
			return 0, err
		}
	}
	n := 0
	for i, name := range old {
		if folder != uploads && used[string(sums[i])] {
			continue
		}
		gone, err := removeOld(root, name, e.db.Now())
		if err != nil {
			return n, err
		}
		if gone {
			n++
		}
	}
	return n, nil
}

// removeOld removes a file that is old still. An upload of the same bytes may
// have put a new one in its place since it was looked at: that is put back.
func removeOld(root *os.Root, name string, now time.Time) (bool, error) {
	if err := root.MkdirAll(uploads, artifactFolder); err != nil {
		return false, err
	}
	aside := uploads + "/" + crand.Text()
	if err := root.Rename(name, aside); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return false, err
	}
	info, err := root.Stat(aside)
	if err == nil && now.Sub(info.ModTime()) < keepBytes {
		return false, root.Rename(aside, name)
	}
	if err == nil {
		err = root.Remove(aside)
	}
	return err == nil, err
}
