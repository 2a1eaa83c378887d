package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/protocol"
)

// readyTime bounds the look whether the server can work.
const readyTime = 2 * time.Second

// checkDatabase is the one thing readiness depends on.
const checkDatabase = "database"

// errStarting is why a server that has only just begun is not ready.
var errStarting = errors.New("the server is starting: it waits for its database")

// Starting returns what answers before there is an engine: that the process
// lives and is not ready, and to all else to come again.
func Starting(cfg Config) http.Handler {
	cfg.Ready = func(context.Context) error { return errStarting }
	a, err := build(cfg, table())
	if err != nil {
		panic("api: " + err.Error())
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/livez", "/readyz", "/healthz":
			a.ServeHTTP(w, r)
		default:
			later := drover.Errorf(drover.CodeOverloaded, "the server is starting and waits for its database")
			later.RetryAfter = time.Second
			a.refuse(w, r, later)
		}
	})
}

// livez says that the process answers; that is all it depends on.
func (a *API) livez(w http.ResponseWriter, r *request) error {
	return a.health(w, r, protocol.Health{Status: "ok", Checks: []protocol.Check{{Name: "process", OK: true}}})
}

// readyz says whether the server can work. The reason why not goes to the log
// only: anybody may ask.
func (a *API) readyz(w http.ResponseWriter, r *request) error {
	h := protocol.Health{Status: "ok"}
	check := protocol.Check{Name: checkDatabase, OK: true}
	excluded := false
	for _, v := range r.query["exclude"] {
		for name := range strings.SplitSeq(v, ",") {
			if name != checkDatabase {
				return invalidQuery("exclude", "names a check that there is not; there is "+checkDatabase)
			}
			excluded = true
		}
	}
	if a.Ready != nil && !excluded {
		ctx, cancel := context.WithTimeout(r.Context(), readyTime)
		defer cancel()
		if err := a.Ready(ctx); err != nil {
			check.OK, check.Detail = false, "does not answer as it should; see the server's log"
			h.Status = "failing"
			a.log.WarnContext(r.Context(), "not ready", "check", check.Name, "trace_id", traceOf(r.Context()), "err", err)
		}
	}
	if !excluded {
		h.Checks = append(h.Checks, check)
	}
	return a.health(w, r, h)
}

func (a *API) healthz(w http.ResponseWriter, r *request) error { return a.readyz(w, r) }

// health answers as Kubernetes' own servers do: "ok" in plain text, JSON where
// it is asked for or something fails.
func (a *API) health(w http.ResponseWriter, r *request, h protocol.Health) error {
	switch {
	case h.Status != "ok" && !r.query.Has("verbose"):
		return drover.Errorf(drover.CodeOverloaded, "the server is not ready: %s", h.Checks[0].Name)
	case h.Status != "ok":
		return a.reply(w, r, http.StatusServiceUnavailable, h)
	case r.query.Has("verbose") || r.route.id == "getHealth":
		return a.reply(w, r, http.StatusOK, h)
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if r.Method != http.MethodHead {
		_, _ = w.Write([]byte("ok\n")) // a prober that left needs no answer
	}
	return nil
}

// commit is the revision the program was built from, where Go knows it.
var commit = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	i := slices.IndexFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == "vcs.revision" })
	if i < 0 {
		return ""
	}
	return info.Settings[i].Value
})

func (a *API) version(w http.ResponseWriter, r *request) error {
	return a.reply(w, r, http.StatusOK, protocol.Version{
		Version: cmp.Or(a.Version, "dev"), Commit: cmp.Or(a.Commit, commit()), Go: runtime.Version(), Database: a.Database,
	})
}
