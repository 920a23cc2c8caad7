package main

import (
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/miekg/dns"

	"github.com/sluice-router/sluice/internal/sim"
)

// replace writes a file beside another one and puts it in its place.
func replace(t *testing.T, name, text string) {
	t.Helper()
	write(t, name+".new", text)
	if err := os.Rename(name+".new", name); err != nil {
		t.Fatal(err)
	}
}

func TestWorkersOfAFile(t *testing.T) {
	f := workers(t, sim.Options{Regular: 3})
	a, b, c := f.Regular(0).URL(), f.Regular(1).URL(), f.Regular(2).URL()
	file := t.TempDir() + "/workers.json"
	p := serve(t, "--worker-urls", a, "--discovery-provider", "file", "--discovery-file", file, "--discovery-check-interval-secs", "0.6")
	p.untilListed(map[string]string{a: "configuration ready", "source configuration": "ok", "source file": "failing"})

	// One of the list has another owner, and one is wrong.
	replace(t, file, `{"version": 1, "workers": [{"id": "x", "url": "`+b+`"}, {"url": "`+a+`"}, {"url": "ftp://c:1"}]}`)
	p.untilListed(map[string]string{a: "configuration ready", b: "file ready", "source configuration": "ok", "source file": "ok"})
	p.line("workers.json:1: workers[2].url")
	p.line("already registered by configuration")

	replace(t, file, `{"version": 1, "workers": [{"url": "`+c+`"}]}`)
	p.untilListed(map[string]string{a: "configuration ready", c: "file ready", "source configuration": "ok", "source file": "ok"})

	// A broken file removes nobody, and an empty list only when it was read three times.
	replace(t, file, `{"version": 1, "workers": [`)
	p.untilListed(map[string]string{a: "configuration ready", c: "file ready", "source configuration": "ok", "source file": "failing"})
	replace(t, file, `{"version": 1, "workers": []}`)
	p.untilListed(map[string]string{a: "configuration ready", c: "file ready", "source configuration": "ok", "source file": "holding"})
	p.untilListed(map[string]string{a: "configuration ready", "source configuration": "ok", "source file": "ok"})
}

func TestWorkersOfANameInDNS(t *testing.T) {
	f := workers(t, sim.Options{Regular: 1})
	worker, err := url.Parse(f.Regular(0).URL())
	if err != nil {
		t.Fatal(err)
	}
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var failing atomic.Bool
	started := make(chan struct{})
	server := &dns.Server{PacketConn: pc, NotifyStartedFunc: func() { close(started) }, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		r := new(dns.Msg).SetReply(q)
		switch {
		case failing.Load():
			r.Rcode = dns.RcodeServerFailure
		case q.Question[0].Qtype == dns.TypeA && q.Question[0].Name == "engines.test.":
			r.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: net.IPv4(127, 0, 0, 1)}}
		}
		_ = w.WriteMsg(r) // the router asks again
	})}
	over := make(chan error, 1)
	go func() { over <- server.ActivateAndServe() }()
	<-started
	defer func() {
		_ = server.Shutdown()
		<-over
	}()
	name := "engines.test.:" + worker.Port()
	p := serve(t, "--discovery-dns-names", name+",labels.zone=a", "--discovery-dns-server", pc.LocalAddr().String(), "--discovery-dns-min-interval-secs", "0.1")
	p.untilListed(map[string]string{worker.String(): "dns:" + name + " ready", "source configuration": "ok", "source dns:" + name: "ok"})
	failing.Store(true)
	p.untilListed(map[string]string{worker.String(): "dns:" + name + " ready", "source configuration": "ok", "source dns:" + name: "failing"})
}

func TestRegisteredWorkersSurviveARestart(t *testing.T) {
	f := workers(t, sim.Options{Regular: 3})
	a, b, c := f.Regular(0).URL(), f.Regular(1).URL(), f.Regular(2).URL()
	file := t.TempDir() + "/workers.json"
	start := func() *process { return serve(t, "--worker-urls", a, "--workers-state", file, "--pre-drain-wait", "0") }
	end := func(p *process) {
		p.signal(syscall.SIGTERM)
		if code := p.ended(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
	p := start()
	for _, u := range []string{b, c} {
		if status, body := p.post("/workers", `{"url":"`+u+`","labels":{"zone":"x"}}`); status/100 != 2 {
			t.Fatalf("status %d: %s", status, body)
		}
	}
	p.untilListed(map[string]string{a: "configuration ready", b: "requests ready", c: "requests ready", "source configuration": "ok"})
	end(p)

	p = start()
	p.untilListed(map[string]string{a: "configuration ready", b: "requests ready", c: "requests ready", "source configuration": "ok"})
	if status, body := p.get("/workers/" + url.PathEscape(b)); status != 200 || !strings.Contains(body, `"zone":"x"`) {
		t.Errorf("status %d: %s", status, body)
	}
	{
		req, err := http.NewRequest("DELETE", "http://"+p.address+"/workers/"+url.PathEscape(b), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil || resp.StatusCode/100 != 2 {
			t.Fatalf("status %v, %v", resp, err)
		}
		_ = resp.Body.Close() // nothing of it is needed
	}
	end(p)

	p = start()
	p.untilListed(map[string]string{a: "configuration ready", c: "requests ready", "source configuration": "ok"})
	end(p)

	write(t, file, "{")
	p = start()
	p.untilListed(map[string]string{a: "configuration ready", "source configuration": "ok"})
	if aside, err := os.ReadFile(file + ".bad"); err != nil || string(aside) != "{" {
		t.Errorf("put aside: %q, %v", aside, err)
	}
	end(p)
}

// A router whose workers were all registered by request does not ask for workers after a restart.
func TestRestoredWorkersAreNotMissed(t *testing.T) {
	f := workers(t, sim.Options{Regular: 1})
	file := t.TempDir() + "/workers.json"
	p := serve(t, "--workers-state", file)
	p.line("no worker is known yet")
	if status, body := p.post("/workers", `{"url":"`+f.Regular(0).URL()+`"}`); status/100 != 2 {
		t.Fatalf("status %d: %s", status, body)
	}
	p.signal(syscall.SIGTERM)
	if code := p.ended(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	p = serve(t, "--workers-state", file)
	for {
		// The line about admission is the one behind it.
		if line := p.line("msg="); strings.Contains(line, "admission: off") {
			return
		} else if strings.Contains(line, "no worker is known yet") {
			t.Fatal(line)
		}
	}
}
