// Package e2e runs Drover as its users do: the built command, several processes,
// real databases; and kills them in the middle.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/drover-dev/drover/client"
)

// bin is the folder with the built command in it.
var bin string

// repo is the root of the checkout.
var repo string

func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) != "" { // this process is a worker that a test has started
		if err := workerMain(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code, err := build(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func build(m *testing.M) (code int, err error) {
	if repo, err = filepath.Abs("../.."); err != nil {
		return 1, err
	}
	if bin, err = os.MkdirTemp("", "drover-e2e-"); err != nil {
		return 1, err
	}
	defer os.RemoveAll(bin)
	cmd := exec.Command("go", "build", "-o", filepath.Join(bin, "drover"), "./cmd/drover")
	cmd.Dir = repo
	if out, err := cmd.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("build: %w\n%s", err, out)
	}
	return m.Run(), nil
}

// folder is a place of its own for a test: what is run there has an empty home
// and nothing of this process's environment but PATH.
type folder struct {
	t    *testing.T
	path string
	env  []string
}

func newFolder(t *testing.T) *folder {
	t.Helper()
	return &folder{t: t, path: t.TempDir(), env: []string{
		"PATH=" + bin + string(os.PathListSeparator) + os.Getenv("PATH"), "HOME=" + t.TempDir(), "TMPDIR=" + t.TempDir(),
	}}
}

func (f *folder) file(name string) string { return filepath.Join(f.path, name) }

func (f *folder) write(name, text string) string {
	f.t.Helper()
	if err := os.WriteFile(f.file(name), []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
	return f.file(name)
}

func (f *folder) read(name string) string {
	f.t.Helper()
	b, err := os.ReadFile(f.file(name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.t.Fatal(err)
	}
	return string(b)
}

// run runs a program to its end.
func (f *folder) run(name string, words ...string) (stdout, stderr string, code int) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, f.look(name), words...)
	var out, errs bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = f.path, f.env, &out, &errs
	cmd.WaitDelay = time.Second // what it has started may hold its output open
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // and what it has started
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		f.t.Fatalf("%s %s: %v", name, strings.Join(words, " "), err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func (f *folder) look(name string) string {
	if name == "drover" {
		return filepath.Join(bin, name)
	}
	return name
}

// drover runs the command, which must end with status 0, and returns what it printed.
func (f *folder) drover(words ...string) string {
	f.t.Helper()
	out, errs, code := f.run("drover", words...)
	if code != 0 {
		f.t.Fatalf("drover %s: status %d\n%s%s", strings.Join(words, " "), code, out, errs)
	}
	return strings.TrimSpace(out)
}

// process is a program that runs beside the test.
type process struct {
	t     *testing.T
	name  string
	cmd   *exec.Cmd
	errs  *text
	line  chan struct{} // closed once it has printed something
	ended chan struct{}
}

// text is written by one goroutine and read by others.
type text struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (x *text) Write(p []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.b.Write(p)
}

func (x *text) String() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.b.String()
}

// first passes on what is written, and that something was.
type first struct {
	to   *text
	call func()
}

func (w first) Write(p []byte) (int, error) {
	n, err := w.to.Write(p)
	w.call()
	return n, err
}

// start runs a program until it is killed, at the latest at the end of the test.
func (f *folder) start(env []string, name string, words ...string) *process {
	f.t.Helper()
	p := &process{t: f.t, name: name + " " + strings.Join(words, " "), errs: &text{}, line: make(chan struct{}), ended: make(chan struct{})}
	p.cmd = exec.Command(f.look(name), words...)
	p.cmd.Dir, p.cmd.Env, p.cmd.Stderr = f.path, append(f.env[:len(f.env):len(f.env)], env...), p.errs
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that what it starts can be ended with it
	p.cmd.Stdout = first{p.errs, sync.OnceFunc(func() { close(p.line) })}
	p.cmd.WaitDelay = time.Second // what it has started may hold its output open
	if err := p.cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // the status is in ProcessState
	}()
	f.t.Cleanup(func() {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // it may have ended
		<-p.ended
		if f.t.Failed() {
			f.t.Logf("%s wrote:\n%s", p.name, p.errs)
		}
	})
	return p
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("%s to %s: %v", s, p.name, err)
	}
}

// interrupt is Ctrl-C, which reaches what it has started, too.
func (p *process) interrupt() {
	p.t.Helper()
	if err := syscall.Kill(-p.cmd.Process.Pid, syscall.SIGINT); err != nil {
		p.t.Fatalf("interrupt %s: %v", p.name, err)
	}
}

// kill ends it at once, and it alone.
func (p *process) kill() {
	p.t.Helper()
	p.signal(syscall.SIGKILL)
	p.wait()
}

func (p *process) wait() (code int) {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(time.Minute):
		p.t.Fatalf("%s does not end", p.name)
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// dev starts "drover dev" on the folder's state and returns when it is ready.
func (f *folder) dev(addr string, words ...string) *process {
	f.t.Helper()
	p := f.start(nil, "drover", append([]string{"dev", "--addr", addr}, words...)...)
	select {
	case <-p.line: // the greeting comes once it is ready
	case <-p.ended:
		f.t.Fatalf("dev ended before it was ready:\n%s", p.errs)
	}
	return p
}

// connect returns a client of the dev server of the folder's state.
func (f *folder) connect() *client.Client {
	f.t.Helper()
	var dev struct{ URL, Token string }
	if err := json.Unmarshal([]byte(f.read(".drover/dev.json")), &dev); err != nil {
		f.t.Fatal(err)
	}
	return connect(f.t, dev.URL, dev.Token)
}

func connect(t *testing.T, url, token string) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{URL: url, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// ready waits until the server at url answers that it is.
func (p *process) ready(url string) {
	p.t.Helper()
	eventually(p.t, 30*time.Second, url+" is not ready", func() bool {
		if !p.alive() {
			p.t.Fatalf("%s ended before it was ready", p.name)
		}
		res, err := http.Get(url + "/readyz")
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
}

// eventually waits until ok.
func eventually(t *testing.T, limit time.Duration, otherwise string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after %v: %s", limit, otherwise)
		}
	}
}

// freeAddress returns an address that nobody listens on at the moment.
func freeAddress(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}
