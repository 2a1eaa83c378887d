package executor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"mime"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/drover-dev/drover/internal/builtin"
	"github.com/drover-dev/drover/worker"
)

// execInput is the input of an exec task.
type execInput struct {
	// Command is the program and its arguments. They reach it as they are: no
	// shell reads them.
	Command []text          `json:"command"`
	Env     map[string]text `json:"env"`
	// Files are fetched into the folder the program starts in: name to URI.
	Files map[string]string `json:"files"`
	Stdin *text             `json:"stdin"`
	// ExitCodes says what an exit status means, where that is not the usual.
	ExitCodes struct {
		Permanent []int `json:"permanent"`
		Retryable []int `json:"retryable"`
	} `json:"exit_codes"`
}

const maxArtifacts = 10_000 // of one attempt

// permanent reports whether an exit status means that trying again cannot help:
// sysexits' EX_USAGE, EX_DATAERR and EX_CONFIG, and the shell's "not
// executable" and "not found".
func (in *execInput) permanent(code int) bool {
	switch {
	case slices.Contains(in.ExitCodes.Permanent, code):
		return true
	case slices.Contains(in.ExitCodes.Retryable, code):
		return false
	}
	return code == 64 || code == 65 || code == 78 || code == 126 || code == 127
}

// program runs exec tasks.
type program struct {
	o    Options
	home shelter
}

func newProgram(o Options) *program { return &program{o: o, home: shelter{temp: o.Temp}} }

// folders are those of one attempt, under one of its own:
//
//	work/       where the program starts; files of the task are in it
//	artifacts/  what it leaves here is uploaded
//	tmp/        TMPDIR
//	input.json  output.json  checkpoint
type folders struct{ base, work, artifacts, tmp, input, output, checkpoint string }

func makeFolders(parent string, input []byte) (f folders, err error) {
	base, err := os.MkdirTemp(parent, "task-")
	if err != nil {
		return f, fmt.Errorf("make the task's folder: %w", err)
	}
	in := func(name string) string { return filepath.Join(base, name) }
	f = folders{base, in("work"), in("artifacts"), in("tmp"), in("input.json"), in("output.json"), in("checkpoint")}
	for _, dir := range []string{f.work, f.artifacts, f.tmp} {
		err = errors.Join(err, os.Mkdir(dir, 0o700))
	}
	if err = errors.Join(err, os.WriteFile(f.input, input, 0o600)); err != nil {
		removeAll(f.base)
		return f, fmt.Errorf("make the task's folder: %w", err)
	}
	return f, nil
}

// run is the handler.
func (p *program) run(ctx context.Context, t *worker.Task) (any, error) {
	var in execInput
	if err := decode(builtin.Exec, t.Input, &in); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(in.Files)) {
		if !filepath.IsLocal(filepath.FromSlash(name)) { // as this system sees it
			return nil, bad("exec: files: %q does not name a file inside the task's folder", name)
		}
	}
	input := []byte(t.Input)
	if len(input) == 0 {
		input = []byte("null")
	}
	home, leave, err := p.home.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	f, err := makeFolders(home, input)
	if err != nil {
		return nil, err
	}
	defer removeAll(f.base)
	if err := fetch(ctx, t, f.work, in.Files); err != nil {
		return nil, err
	}
	saved, err := newCheckpoint(t, f.checkpoint)
	if err != nil {
		return nil, err
	}
	err = p.start(ctx, t, &in, f)
	saved.stop()
	if err != nil {
		return nil, err
	}
	uris, err := upload(ctx, t, f.artifacts)
	if err != nil {
		return nil, err
	}
	return p.result(f, uris)
}

// fetch writes artifacts into dir. os.Root keeps every name inside it.
func fetch(ctx context.Context, t *worker.Task, dir string, files map[string]string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("open the task's folder: %w", err)
	}
	defer func() { _ = root.Close() }()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := fetchOne(ctx, t, root, name, files[name]); err != nil {
			return fmt.Errorf("fetch %s: %w", name, err)
		}
	}
	return nil
}

func fetchOne(ctx context.Context, t *worker.Task, root *os.Root, name, uri string) error {
	if err := root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return worker.Permanent(err)
	}
	file, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return worker.Permanent(err)
	}
	defer file.Close()
	r, err := t.OpenArtifact(ctx, uri)
	if err != nil {
		return err
	}
	defer r.Close()
	if _, err := io.Copy(file, r); err != nil {
		return err
	}
	return file.Close()
}

// start runs the program to its end and returns nil when that is exit status 0.
func (p *program) start(ctx context.Context, t *worker.Task, in *execInput, f folders) error {
	name := string(in.Command[0])
	file := name
	var err error
	if strings.ContainsRune(name, '/') {
		if !filepath.IsAbs(name) {
			file = filepath.Join(p.o.Workdir, name)
		}
	} else if file, err = exec.LookPath(name); err != nil {
		return notStarted(in, name, err)
	}
	cmd := &exec.Cmd{Path: file, Args: []string{name}, Dir: f.work, Env: p.env(t, in, f), WaitDelay: 2 * time.Second}
	for _, arg := range in.Command[1:] {
		cmd.Args = append(cmd.Args, string(arg))
	}
	if in.Stdin != nil {
		cmd.Stdin = strings.NewReader(string(*in.Stdin))
	}
	out := &output{t: t, left: p.o.MaxLog, most: p.o.MaxLog}
	closeWriters, closeReaders, err := out.attach(cmd)
	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	defer closeReaders()
	proc, err := launch(cmd)
	closeWriters()
	if err != nil {
		closeReaders()
		out.wait(0)
		return notStarted(in, name, err)
	}
	killed := proc.watch(ctx, p.o.KillAfter)
	proc.signal(syscall.SIGKILL) // what the program left running goes with it
	state := proc.reap()
	if !out.wait(5 * time.Second) { // something left the group and holds the pipes
		closeReaders()
		out.wait(0)
	}
	switch {
	case killed:
		return fmt.Errorf("%s was stopped: %w", name, context.Cause(ctx))
	case state == nil:
		return fmt.Errorf("wait for %s: its end was not seen", name)
	}
	return in.verdict(state, out.lastWords())
}

// notStarted says what it means that a program did not start, in the terms of a shell.
func notStarted(in *execInput, name string, err error) error {
	var inner *fs.PathError
	var look *exec.Error
	switch {
	case errors.As(err, &inner):
		err = inner.Err
	case errors.As(err, &look):
		err = look.Err
	}
	code := 0
	switch {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		code = 127
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.ENOEXEC), errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ENOTDIR):
		code = 126
	}
	err = fmt.Errorf("start %s: %w", name, err)
	if code == 0 {
		return worker.TypedError("not_started", err)
	}
	err = worker.TypedError("exit_"+strconv.Itoa(code), err)
	if in.permanent(code) {
		return worker.Permanent(err)
	}
	return err
}

// verdict turns the end of a program into an error, or nil.
func (in *execInput) verdict(state *os.ProcessState, words string) error {
	if state.Success() {
		return nil
	}
	code := state.ExitCode()
	kind, what := "exit_"+strconv.Itoa(code), "exit status "+strconv.Itoa(code)
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		kind, what = "signal_"+strconv.Itoa(int(ws.Signal())), "killed by signal "+ws.Signal().String()
	}
	err := errors.New(what)
	if words != "" {
		err = fmt.Errorf("%s (%s)", words, what)
	}
	err = worker.TypedError(kind, err)
	if in.permanent(code) {
		return worker.Permanent(err)
	}
	return err
}

// env is the program's environment: a small clean base, what the task says, and
// what it needs to know about itself. Nothing of this process's own gets in but PATH.
func (p *program) env(t *worker.Task, in *execInput, f folders) []string {
	search := os.Getenv("PATH") //nolint:forbidigo // programs are looked up by it (exec.LookPath), so theirs must be the same
	if search == "" {
		search = "/usr/local/bin:/usr/bin:/bin"
	}
	env := map[string]string{"PATH": search, "HOME": f.work, "LANG": "C.UTF-8", "TMPDIR": f.tmp}
	if t.Traceparent != "" {
		env["TRACEPARENT"] = t.Traceparent
	}
	for k, v := range in.Env {
		env[k] = string(v)
	}
	maps.Copy(env, map[string]string{
		"DROVER_TASK_ID": t.TaskID.String(), "DROVER_JOB_ID": t.JobID.String(), "DROVER_TASK_NAME": t.Name,
		"DROVER_TASK_INDEX": strconv.Itoa(t.Index), "DROVER_ATTEMPT": strconv.Itoa(t.Attempt),
		"DROVER_LEASE_VERSION": strconv.Itoa(int(t.LeaseVersion)), "DROVER_IDEMPOTENCY_KEY": t.IdempotencyKey,
		"DROVER_INPUT": f.input, "DROVER_OUTPUT": f.output, "DROVER_ARTIFACTS": f.artifacts, "DROVER_WORKDIR": p.o.Workdir,
		"DROVER_CHECKPOINT": f.checkpoint, "DROVER_HEARTBEAT": strconv.Itoa(int(t.Lease.Heartbeat.Std().Seconds())),
	})
	if len(t.DegradedBy) > 0 {
		if b, err := json.Marshal(t.DegradedBy); err == nil { // it came as JSON
			env["DROVER_DEGRADED"] = string(b)
		}
	}
	list := make([]string, 0, len(env))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		list = append(list, k+"="+env[k])
	}
	return list
}

// upload saves every file under dir as an artifact named after its path, and
// returns their URIs. Links and other special files are passed over.
func upload(ctx context.Context, t *worker.Task, dir string) (map[string]string, error) {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the program deleted it
	}
	if err != nil {
		return nil, fmt.Errorf("open the folder of artifacts: %w", err)
	}
	defer func() { _ = root.Close() }()
	uris := map[string]string{}
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return fmt.Errorf("read the folder of artifacts: %w", err)
		case d.IsDir():
			return nil
		case !d.Type().IsRegular():
			t.Log().Warn("not saved as an artifact: not a regular file", "name", name)
			return nil
		case !utf8.ValidString(name):
			return worker.Permanent(fmt.Errorf("save artifact %q: the name is not UTF-8", name))
		case len(uris) == maxArtifacts:
			return worker.Permanent(worker.TypedError("too_many_artifacts", fmt.Errorf("more than %d files are in $DROVER_ARTIFACTS; pack them", maxArtifacts)))
		}
		file, err := root.Open(name)
		if err != nil {
			return fmt.Errorf("save artifact %q: %w", name, err)
		}
		defer file.Close()
		var opts []worker.ArtifactOption
		if media := mime.TypeByExtension(path.Ext(name)); media != "" {
			opts = append(opts, worker.WithMediaType(media))
		}
		a, err := t.SaveArtifact(ctx, name, file, opts...)
		if err != nil {
			return err
		}
		uris[name] = a.URI
		return nil
	})
	return uris, err
}

// result reads what the program wrote to $DROVER_OUTPUT; nothing is {}.
func (p *program) result(f folders, uris map[string]string) (json.RawMessage, error) {
	root, err := os.OpenRoot(f.base)
	if err != nil {
		return nil, fmt.Errorf("read the result: %w", err)
	}
	defer func() { _ = root.Close() }()
	name := filepath.Base(f.output)
	info, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return json.RawMessage("{}"), nil
	}
	fail := func(err error) (json.RawMessage, error) {
		return nil, worker.Permanent(worker.TypedError("bad_output", fmt.Errorf("read the result in $DROVER_OUTPUT: %w", err)))
	}
	if err != nil {
		return fail(err)
	}
	if !info.Mode().IsRegular() {
		return fail(errors.New("it is not a regular file"))
	}
	file, err := root.Open(name)
	if err != nil {
		return fail(err)
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, p.o.MaxOutput+1))
	switch {
	case err != nil:
		return fail(err)
	case int64(len(b)) > p.o.MaxOutput:
		return fail(fmt.Errorf("it has more than %d bytes; leave large results in $DROVER_ARTIFACTS", p.o.MaxOutput))
	case len(strings.TrimSpace(string(b))) == 0:
		return json.RawMessage("{}"), nil
	case !utf8.Valid(b):
		return fail(errors.New("it is not UTF-8"))
	}
	if err := json.Unmarshal(b, new(json.RawMessage)); err != nil {
		return fail(fmt.Errorf("it is not JSON: %w", err))
	}
	return link(b, uris), nil
}

// link puts the URI of an artifact in the place of every string value
// "artifact:NAME" that names one. Everything else stays byte for byte.
func link(b []byte, uris map[string]string) json.RawMessage {
	if len(uris) == 0 {
		return b
	}
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); {
		if b[i] != '"' {
			out = append(out, b[i])
			i++
			continue
		}
		end := i + 1
		for b[end] != '"' { // b is valid JSON
			if b[end] == '\\' {
				end++
			}
			end++
		}
		end++
		var s string
		next := end
		for next < len(b) && strings.IndexByte(" \t\r\n", b[next]) >= 0 {
			next++
		}
		key := next < len(b) && b[next] == ':'
		uri := ""
		if !key && json.Unmarshal(b[i:end], &s) == nil {
			if name, ok := strings.CutPrefix(s, "artifact:"); ok {
				uri = uris[name]
			}
		}
		if uri != "" {
			out = append(append(append(out, '"'), uri...), '"')
		} else {
			out = append(out, b[i:end]...)
		}
		i = end
	}
	return out
}

// output carries what a program writes into the task's log.
type output struct {
	t    *worker.Task
	done chan struct{}

	mu    sync.Mutex
	left  int64
	most  int64
	words string // the last line on stderr that is not empty
}

// attach gives cmd pipes and starts reading them.
func (o *output) attach(cmd *exec.Cmd) (closeWriters, closeReaders func(), err error) {
	outR, outW, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	errR, errW, err := os.Pipe()
	if err != nil {
		outR.Close()
		outW.Close()
		return nil, nil, err
	}
	cmd.Stdout, cmd.Stderr = outW, errW
	o.done = make(chan struct{})
	var both sync.WaitGroup
	both.Go(func() { lines(outR, func(s string) { o.line("stdout", s) }) })
	both.Go(func() { lines(errR, func(s string) { o.line("stderr", s) }) })
	go func() { both.Wait(); close(o.done) }()
	return func() { outW.Close(); errW.Close() }, func() { outR.Close(); errR.Close() }, nil
}

// wait waits for the end of both pipes, at most for d (zero: as long as it takes).
func (o *output) wait(d time.Duration) bool {
	if d == 0 {
		<-o.done
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-o.done:
		return true
	case <-t.C:
		return false
	}
}

func (o *output) lastWords() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.words
}

const progressMark = "::progress "

func (o *output) line(stream, s string) {
	if rest, ok := strings.CutPrefix(s, progressMark); ok && stream == "stdout" {
		ratio, message, _ := strings.Cut(strings.TrimSpace(rest), " ")
		if r, err := strconv.ParseFloat(ratio, 64); err == nil {
			o.t.Progress(r, strings.TrimSpace(message))
			return
		}
	}
	o.mu.Lock()
	if stream == "stderr" && strings.TrimSpace(s) != "" {
		o.words = strings.TrimSpace(s)
	}
	had := o.left
	o.left -= int64(len(s)) + 1
	left := o.left
	o.mu.Unlock()
	switch {
	case left >= 0:
		o.t.LogLine(stream, s)
	case had >= 0:
		o.t.LogLine("warn", fmt.Sprintf("the program wrote more than %d bytes; the rest is not kept", o.most))
	}
}

// maxLine is how many bytes of a line are kept.
const maxLine = 15 << 10

// lines calls f for every line, made valid UTF-8. A line that is too long is cut
// and says so. It reads to the end, so that no program waits for a full pipe.
func lines(r io.Reader, f func(string)) {
	var line []byte
	total := 0
	emit := func() {
		if total > len(line) {
			f(strings.ToValidUTF8(string(line), "\ufffd") + fmt.Sprintf("… (cut; %d bytes in all)", total))
		} else {
			f(strings.ToValidUTF8(strings.TrimSuffix(string(line), "\r"), "\ufffd"))
		}
		line, total = line[:0], 0
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		rest := buf[:n]
		for len(rest) > 0 {
			part, whole := rest, false
			for i, c := range rest {
				if c == '\n' {
					part, whole = rest[:i], true
					break
				}
			}
			rest = rest[len(part):]
			total += len(part)
			line = append(line, part[:min(len(part), maxLine-len(line))]...)
			if whole {
				rest = rest[1:]
				emit()
			}
		}
		if err != nil {
			if total > 0 {
				emit()
			}
			return
		}
	}
}
