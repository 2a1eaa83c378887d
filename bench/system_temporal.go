package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/jackc/pgx/v5"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"google.golang.org/protobuf/types/known/durationpb"
)

// temporalSystem is Temporal: its server as a process on PostgreSQL, and this
// process as client and worker. A job is a workflow with one activity, a task of
// a graph is an activity.
type temporalSystem struct {
	entries
	postgres string
	extra    string // URL of the database for visibility
	server   *process
	client   client.Client
	worker   worker.Worker
	slots    int
}

const (
	temporalQueue     = "bench"
	temporalNamespace = "bench"
)

// temporalConfig is the server's development configuration for PostgreSQL with
// ports of its own and more connections.
var temporalConfig = template.Must(template.New("").Parse(`log: {stdout: true, level: error}
persistence:
  defaultStore: default
  visibilityStore: visibility
  numHistoryShards: 4
  datastores:
    default: {sql: {pluginName: postgres12, databaseName: "{{.Database}}", connectAddr: "{{.Addr}}", connectProtocol: tcp, user: "{{.User}}", password: "", maxConns: 40, maxIdleConns: 40, maxConnLifetime: 1h}}
    visibility: {sql: {pluginName: postgres12, databaseName: "{{.Database}}_visibility", connectAddr: "{{.Addr}}", connectProtocol: tcp, user: "{{.User}}", password: "", maxConns: 10, maxIdleConns: 10, maxConnLifetime: 1h}}
global:
  membership: {maxJoinDuration: 30s, broadcastAddress: 127.0.0.1}
services:
  frontend: {rpc: {grpcPort: {{index .Ports 0}}, membershipPort: {{index .Ports 1}}, bindOnLocalHost: true}}
  history: {rpc: {grpcPort: {{index .Ports 2}}, membershipPort: {{index .Ports 3}}, bindOnLocalHost: true}}
  matching: {rpc: {grpcPort: {{index .Ports 4}}, membershipPort: {{index .Ports 5}}, bindOnLocalHost: true}}
  worker: {rpc: {grpcPort: {{index .Ports 6}}, membershipPort: {{index .Ports 7}}, bindOnLocalHost: true}}
clusterMetadata:
  enableGlobalNamespace: false
  failoverVersionIncrement: 10
  masterClusterName: active
  currentClusterName: active
  clusterInformation:
    active: {enabled: true, initialFailoverVersion: 1, rpcName: frontend, rpcAddress: "127.0.0.1:{{index .Ports 0}}"}
dcRedirectionPolicy: {policy: noop}
archival:
  history: {state: disabled}
  visibility: {state: disabled}
dynamicConfigClient: {filepath: "{{.Dynamic}}", pollInterval: 60s}
`))

// temporalDynamic lifts the limits on rates, so that none of them is measured.
const temporalDynamic = `frontend.rps: [{value: 1000000}]
frontend.namespaceRPS: [{value: 1000000}]
frontend.namespaceCount: [{value: 100000}]
frontend.persistenceMaxQPS: [{value: 1000000}]
history.rps: [{value: 1000000}]
history.persistenceMaxQPS: [{value: 1000000}]
matching.rps: [{value: 1000000}]
matching.persistenceMaxQPS: [{value: 1000000}]
`

func openTemporal(ctx context.Context, o settings) (_ system, err error) {
	u, err := url.Parse(o.Postgres)
	if err != nil {
		return nil, err
	}
	s := &temporalSystem{postgres: o.Postgres, slots: o.Slots}
	if s.slots == 0 {
		s.slots = 1000
	}
	name := strings.TrimPrefix(u.Path, "/")
	if err := s.schema(ctx, o, u, name); err != nil {
		return nil, errors.Join(err, s.close())
	}
	config := struct {
		Database, Addr, User, Dynamic string
		Ports                         []string
	}{Database: name, Addr: u.Host, User: u.User.Username(), Dynamic: filepath.Join(o.Dir, "dynamic.yaml")}
	if config.Ports, err = lowPorts(8); err != nil {
		return nil, errors.Join(err, s.close())
	}
	var text strings.Builder
	file := filepath.Join(o.Dir, "temporal.yaml")
	err = errors.Join(temporalConfig.Execute(&text, config), os.WriteFile(config.Dynamic, []byte(temporalDynamic), 0o600))
	if err = errors.Join(err, os.WriteFile(file, []byte(text.String()), 0o600)); err != nil {
		return nil, errors.Join(err, s.close())
	}
	h := &house{ctx: ctx, dir: o.Dir}
	if s.server, err = h.spawn(nil, nil, filepath.Join(o.Bin, "temporal", "server"), "--config-file", file, "--allow-no-auth", "start"); err != nil {
		return nil, errors.Join(err, s.close())
	}
	if err := s.connect(ctx, "127.0.0.1:"+config.Ports[0]); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// lowPorts finds ports that nobody listens on and that fit into 15 bits, as the
// server stores them.
func lowPorts(n int) (ports []string, err error) {
	for try := 0; len(ports) < n; try++ {
		port := strconv.Itoa(12000 + rand.IntN(8000))
		l, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err != nil {
			if try < 100 {
				continue
			}
			return nil, err
		}
		defer l.Close() // not before all are found
		ports = append(ports, port)
	}
	return ports, nil
}

// schema makes the tables, and a second database for what lists are made of.
func (s *temporalSystem) schema(ctx context.Context, o settings, u *url.URL, name string) error {
	visibility := name + "_visibility"
	conn, err := pgx.Connect(ctx, o.Postgres)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+visibility); err != nil {
		return err
	}
	s.extra = visibility
	tool := filepath.Join(o.Bin, "temporal", "sql")
	for database, schema := range map[string]string{name: "postgresql/v12/temporal", visibility: "postgresql/v12/visibility"} {
		base := []string{"--plugin", "postgres12", "--endpoint", u.Hostname(), "--port", u.Port(), "--user", u.User.Username(), "--password", "x", "--database", database}
		for _, step := range [][]string{{"setup-schema", "--version", "0.0"}, {"update-schema", "--schema-name", schema}} {
			if out, err := exec.CommandContext(ctx, tool, append(base, step...)...).CombinedOutput(); err != nil {
				return fmt.Errorf("temporal's schema: %w: %s", err, out)
			}
		}
	}
	return nil
}

// connect waits for the server and for a namespace of its own.
func (s *temporalSystem) connect(ctx context.Context, addr string) (err error) {
	ctx, done := context.WithTimeout(ctx, time.Minute)
	defer done()
	options := client.Options{HostPort: addr, Namespace: temporalNamespace, Logger: sdklog.NewStructuredLogger(silent)}
	for {
		if err = s.tryConnect(ctx, options); err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func (s *temporalSystem) tryConnect(ctx context.Context, options client.Options) error {
	namespaces, err := client.NewNamespaceClient(options)
	if err != nil {
		return err
	}
	defer namespaces.Close()
	err = namespaces.Register(ctx, &workflowservice.RegisterNamespaceRequest{Namespace: temporalNamespace, WorkflowExecutionRetentionPeriod: durationpb.New(24 * time.Hour)})
	if err != nil && !strings.Contains(err.Error(), "already exists") {
		return err
	}
	if s.client == nil {
		if s.client, err = client.DialContext(ctx, options); err != nil {
			return err
		}
	}
	_, err = s.client.CountWorkflow(ctx, &workflowservice.CountWorkflowExecutionsRequest{Query: "ExecutionStatus = 'Running'"})
	return err
}

func (s *temporalSystem) submitMany(ctx context.Context, n int) error {
	return fromMany(ctx, s, n)
}

func (s *temporalSystem) submit(ctx context.Context, due time.Time) error {
	_, err := s.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{TaskQueue: temporalQueue}, "noop", dueAt(due))
	return err
}

func (s *temporalSystem) work(context.Context) error {
	s.worker = worker.New(s.client, temporalQueue, worker.Options{
		MaxConcurrentActivityExecutionSize: s.slots, MaxConcurrentWorkflowTaskExecutionSize: s.slots,
		MaxConcurrentActivityTaskPollers: 16, MaxConcurrentWorkflowTaskPollers: 16,
	})
	s.worker.RegisterActivityWithOptions(func(_ context.Context, p payload) error {
		s.enter(p)
		return nil
	}, activity.RegisterOptions{Name: "noop"})
	s.worker.RegisterWorkflowWithOptions(func(ctx workflow.Context, p payload) error {
		return workflow.ExecuteActivity(temporalActivity(ctx), "noop", p).Get(ctx, nil)
	}, workflow.RegisterOptions{Name: "noop"})
	s.worker.RegisterWorkflowWithOptions(temporalGraph, workflow.RegisterOptions{Name: "graph"})
	return s.worker.Start()
}

func temporalActivity(ctx workflow.Context) workflow.Context {
	return workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute})
}

// temporalGraph is the workflow of a graph.
func temporalGraph(ctx workflow.Context, g shape) (int, error) {
	ctx = temporalActivity(ctx)
	done := 0
	layer := func(width int) error {
		var all []workflow.Future
		for range width {
			all = append(all, workflow.ExecuteActivity(ctx, "noop", payload{}))
		}
		for _, f := range all {
			if err := f.Get(ctx, nil); err != nil {
				return err
			}
			done++
		}
		return nil
	}
	widths := make([]int, g.Depth)
	for i := range widths {
		widths[i] = g.Width
	}
	if g.Name == "fan" {
		widths = append(append([]int{1}, widths...), 1)
	}
	for _, w := range widths {
		if err := layer(w); err != nil {
			return done, err
		}
	}
	return done, nil
}

func (s *temporalSystem) prepare(context.Context, shape) error { return nil }

func (s *temporalSystem) graph(ctx context.Context, g shape) error {
	w, err := s.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{TaskQueue: temporalQueue}, "graph", g)
	if err != nil {
		return err
	}
	done := 0
	if err := w.Get(ctx, &done); err != nil {
		return err
	}
	if done != g.tasks() {
		return fmt.Errorf("%d of %d activities", done, g.tasks())
	}
	return nil
}

// steps counts the activities in the histories of the graphs that have ended.
func (s *temporalSystem) steps(ctx context.Context) (n int, err error) {
	conn, err := pgx.Connect(ctx, s.postgres)
	if err != nil {
		return 0, err
	}
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, "SELECT workflow_id, encode(run_id, 'hex') FROM executions")
	if err != nil {
		return 0, err
	}
	type key struct{ Workflow, Run string }
	keys, err := pgx.CollectRows(rows, pgx.RowToStructByPos[key])
	if err != nil {
		return 0, err
	}
	for _, k := range keys {
		if strings.HasPrefix(k.Workflow, "temporal-sys") {
			continue
		}
		events := s.client.GetWorkflowHistory(ctx, k.Workflow, dashed(k.Run), false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
		for events.HasNext() {
			e, err := events.Next()
			if err != nil {
				return n, err
			}
			if e.GetEventType() == enumspb.EVENT_TYPE_ACTIVITY_TASK_COMPLETED {
				n++
			}
		}
	}
	return n, nil
}

// dashed writes 32 hexadecimal digits as a UUID.
func dashed(hex string) string {
	return hex[:8] + "-" + hex[8:12] + "-" + hex[12:16] + "-" + hex[16:20] + "-" + hex[20:]
}

func (s *temporalSystem) rest(context.Context) error {
	s.worker.Stop()
	s.worker = nil
	return nil
}

func (s *temporalSystem) entered() *entries { return &s.entries }

// count asks the server, whose lists may be a moment behind.
func (s *temporalSystem) count(ctx context.Context) (c counts, err error) {
	for status, n := range map[string]*int{"= 'Completed'": &c.Finished, "!= 'Completed'": &c.Waiting} {
		r, err := s.client.CountWorkflow(ctx, &workflowservice.CountWorkflowExecutionsRequest{Query: "WorkflowType IN ('noop', 'graph') AND ExecutionStatus " + status})
		if err != nil {
			return c, err
		}
		*n = int(r.GetCount())
	}
	return c, nil
}

func (s *temporalSystem) cpu() (time.Duration, error) { return cpuOf(s.server.cmd.Process.Pid) }

func (s *temporalSystem) close() error {
	var err error
	if s.worker != nil {
		s.worker.Stop()
	}
	if s.client != nil {
		s.client.Close()
	}
	if s.server != nil {
		err = s.server.stop()
	}
	if s.extra != "" {
		ctx := context.Background()
		conn, cerr := pgx.Connect(ctx, s.postgres)
		if cerr != nil {
			return errors.Join(err, cerr)
		}
		defer conn.Close(ctx)
		_, derr := conn.Exec(ctx, "DROP DATABASE "+s.extra+" WITH (FORCE)")
		err = errors.Join(err, derr)
	}
	return err
}
