package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// readList reads a list for a router that has, or has not, both phases apart.
func readList(pd bool, text string) ([]ListedWorker, []Warning, error) {
	cfg := Default()
	cfg.Fleet.PDDisaggregation = pd
	list, warnings, err := WorkerList{Config: cfg, Connector: func(class string) string {
		return map[string]string{"MooncakeConnector": "mooncake"}[class]
	}}.Read("list", []byte(text))
	return slices.DeleteFunc(list, func(w ListedWorker) bool { return w.LeftOut }), warnings, err
}

// Which worker was left out is known, so that one that was in force before can stay.
func TestWhatIsLeftOutHasItsURL(t *testing.T) {
	list, _, err := WorkerList{Config: Default()}.Read("list", []byte("- {url: 'http://a:1', bootstrap_port: x}\n- {worker_type: regular}\n- url: http://b:1\n"))
	if err != nil || len(list) != 3 || !list[0].LeftOut || list[0].URL != "http://a:1" || !list[1].LeftOut || list[1].URL != "" || list[2].LeftOut {
		t.Errorf("%+v, %v", list, err)
	}
}

func TestWorkerListForms(t *testing.T) {
	want := []ListedWorker{{Worker: Worker{URL: "http://a:1", Type: WorkerRegular, Labels: map[string]string{"zone": "x"}}}}
	for _, text := range []string{
		"- {url: 'http://a:1/', labels: {zone: x}}",
		"workers:\n- url: http://A:1\n  labels:\n    zone: x\n",
		"version: 1\nworkers: [{url: 'a:1', labels: {zone: x}}]",
		`{"version": 1, "workers": [{"url": "http://a:1", "labels": {"zone": "x"}, "model_id": null}]}`,
		"{\n\t\"version\": 1,\n\t\"workers\": [\n\t\t{\"url\": \"a:1\", \"labels\": {\"zone\": \"x\"}}\n\t]\n}\n",
		`[{"url": "http://a:1", "worker_type": "regular", "labels": {"zone": "x"}}]`,
	} {
		got, warnings, err := readList(false, text)
		for i := range got {
			got[i].Line = 0
		}
		if err != nil || len(warnings) > 0 || !reflect.DeepEqual(got, want) {
			t.Errorf("%s\n%+v, warnings %v, error %v", text, got, warnings, err)
		}
	}
}

func TestWorkerListOfAManifest(t *testing.T) {
	list, warnings, err := readList(true, `{"version": 1, "workers": [
		{"id": "p", "url": "10.0.0.22:8000", "worker_type": "prefill", "bootstrap_port": 8998, "model_id": "m",
		 "kv_connector": "MooncakeConnector", "kv_role": "kv_producer", "kv_engine_id": "e"},
		{"id": null, "url": "[2001:db8::1]:8000", "worker_type": "decode", "bootstrap_port": null}
	]}`)
	if err != nil || len(warnings) > 0 || len(list) != 2 {
		t.Fatalf("%d workers, warnings %v, error %v", len(list), warnings, err)
	}
	p, d := list[0], list[1]
	if p.URL != "http://10.0.0.22:8000" || p.Type != WorkerPrefill || p.BootstrapPort != 8998 || p.ModelID != "m" || p.KVConnector != "mooncake" || p.Name != "p" || p.Identity != "p/e" || p.Line != 2 {
		t.Errorf("prefill: %+v", p)
	}
	if d.URL != "http://[2001:db8::1]:8000" || d.Type != WorkerDecode || d.Identity != "" || d.Line != 4 {
		t.Errorf("decode: %+v", d)
	}
}

// What is wrong with one worker leaves that one out, and says where it stands.
func TestWorkerListLeavesOutWhatIsWrong(t *testing.T) {
	list, warnings, err := readList(false, `workers:
- url: http://good:1
- url: ftp://scheme:1
- {worker_type: regular}
- url: http://role:1
  worker_type: prefill
- url: http://good:1/v1
- url: http://typo:1
  wroker_type: regular
- just text
- url: http://port:1
  bootstrap_port: many
- url: grpc://noport
- url: http://labels:1
  labels: [a]
- url: http://id:1
  id: [a]
- url: http://key:1
  api_key_file: /nowhere
- url: http://last:1
`)
	if err != nil {
		t.Fatal(err)
	}
	var urls []string
	for _, w := range list {
		urls = append(urls, w.URL)
	}
	if got := strings.Join(urls, " "); got != "http://good:1 http://last:1" {
		t.Errorf("workers %s", got)
	}
	all := ""
	for _, w := range warnings {
		all += w.String() + "\n"
	}
	for _, want := range []string{
		"list:3: workers[1].url: \"ftp://scheme:1\"", "list:4: workers[2].url: is missing", "list:5: workers[3].worker_type", "list:7: workers[4].url: \"http://good:1\" is the same worker as in line 2",
		"list:9: workers[5].wroker_type", "list:10: workers[6]", "list:12: workers[7].bootstrap_port", "list:13: workers[8].url", "list:15: workers[9].labels", "list:17: workers[10].id", "workers[11].api_key_file",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("no warning with %q in\n%s", want, all)
		}
	}
}

func TestWhatIsNoWorkerList(t *testing.T) {
	deep := strings.Repeat("[", 20000) + strings.Repeat("]", 20000)
	for text, want := range map[string]string{
		"":                           "is empty",
		"workers:":                   "must be a list",
		"{}":                         "workers: is missing",
		"version: 2\nworkers: []":    "must be 1",
		"workers: {a: b}":            "must be a list",
		"workers: []\nserver: {}":    "unknown key",
		"text":                       "must be a mapping",
		"[":                          "as YAML",
		"- url: a\n---\n- url: b":    "second YAML document",
		"[" + deep + "]":             "",
		strings.Repeat(" ", 9<<20):   "is larger than",
		"&a [*a]":                    "",
		"workers: []\nworkers: []\n": "",
	} {
		list, warnings, err := readList(false, text)
		if want == "" {
			if len(list) > 0 || err == nil && len(warnings) == 0 {
				t.Errorf("%.40q: %d workers and no word", text, len(list))
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: error %.200v, want %q", text, err, want)
		}
	}
	if list, _, err := readList(false, "workers: []"); err != nil || len(list) != 0 {
		t.Errorf("an empty list: %v, %v", list, err)
	}
}

func TestWorkerListIsBounded(t *testing.T) {
	var text strings.Builder
	for i := range maxWorkers + 1 {
		fmt.Fprintf(&text, "- url: http://w%d:1\n", i)
	}
	list, warnings, err := readList(false, text.String())
	if err != nil || len(list) != maxWorkers || len(warnings) != 1 || !strings.Contains(warnings[0].String(), "more than 10000") {
		t.Errorf("%d workers, %d warnings, %v", len(list), len(warnings), err)
	}
}

func BenchmarkWorkerList(b *testing.B) {
	var text strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&text, "- {id: w%d, url: 'http://10.0.%d.%d:30000', labels: {zone: a}}\n", i, i/250, i%250)
	}
	for b.Loop() {
		if list, _, err := readList(false, text.String()); err != nil || len(list) != 5000 {
			b.Fatal(err)
		}
	}
}

func FuzzWorkerList(f *testing.F) {
	for _, s := range []string{
		"- url: http://a:1\n  id: x", `{"version": 1, "workers": [{"url": "a:1", "kv_connector": "X", "kv_role": null}]}`,
		"a: &a [*a]\nworkers: *a", "workers:\n- &w {url: 'http://b'}\n- *w\n- <<: *w", "- url: http://u:p@h",
	} {
		f.Add(s, true)
	}
	f.Fuzz(func(t *testing.T, text string, pd bool) {
		list, _, _ := readList(pd, text)
		for _, w := range list {
			if w.URL == "" || pd == (w.Type == WorkerRegular) {
				t.Errorf("%+v", w)
			}
		}
	})
}

func TestDiscoveryProvider(t *testing.T) {
	for args, want := range map[string]string{
		"":                   "none  ",
		"--discovery-file f": "file f ",
		"--discovery-provider file --discovery-file f":                           "file f ",
		"--discovery-provider kubernetes --selector a=b":                         "kubernetes  true",
		"--service-discovery --selector a=b --discovery-file f":                  "file f true",
		"--discovery-provider file":                                              "needs --discovery-file",
		"--discovery-provider none --discovery-file f":                           "is not used with --discovery-provider none",
		"--discovery-provider kubernetes --selector a=b --discovery-file f":      "is not used with --discovery-provider kubernetes",
		"--discovery-provider kubernetes --service-discovery=false --selector a": "contradicts --service-discovery",
		"--discovery-provider kubernetes":                                        "needs --selector",
	} {
		cfg, _, err := Load(strings.Fields(args), nil, nil)
		got := ""
		if err != nil {
			got = err.Error()
		} else {
			got = fmt.Sprintf("%s %s %t", cfg.Discovery.Provider, cfg.Discovery.File, cfg.Kubernetes.Enabled)
			got = strings.TrimSuffix(got, "false")
		}
		if err == nil && got != want || !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", args, got, want)
		}
	}
}

func TestDNSNames(t *testing.T) {
	for text, want := range map[string]string{
		"e:1": "", "e.internal.:30000,worker_type=regular,labels.a/b=c,scheme=https,family=both,tls.server_name=x,max_running_requests=5": "",
		"e":                         "must begin with NAME:PORT",
		"http://e:1":                "must begin with NAME:PORT",
		"10.0.0.1:1":                "must begin with a name",
		"[::1]:1":                   "must begin with NAME:PORT",
		"e:0":                       "has the port",
		"e:70000":                   "has the port",
		"-e:1":                      "must begin with NAME:PORT",
		"e:1,":                      "must be KEY=VALUE",
		"e:1,a":                     "must be KEY=VALUE",
		"e:1,model_id=a,model_id=b": "each key once",
		"e:1,url=http://x":          "none of scheme",
		"e:1,adapters=x":            "none of scheme",
		"e:1,labels=x":              "none of scheme",
		"e:1,api_key=x":             "api_key_file",
		"e:1,scheme=ftp":            "none of http, https, grpc and grpcs",
		"e:1,family=ipv5":           "none of auto",
		"e:1,block_size=x":          "block_size=x",
		"e:1,labels.=x":             "which cannot be one",
		"e:1,worker_type=prefill":   "needs --pd-disaggregation",
		"e:1,api_key_file=/nowhere": "cannot read it",
		"e:1,tls.ca_file=/nowhere":  "is only for https",
	} {
		_, _, err := Load([]string{"--discovery-dns-names", text}, nil, nil)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if _, _, err := Load([]string{"--discovery-dns-names", "e:1", "--discovery-dns-names", "E:1"}, nil, nil); err == nil {
		t.Error("one name twice is taken")
	}
	cfg, _, err := Load(nil, []string{"SLUICE_DISCOVERY_DNS_NAMES=a:1 b:2,labels.x=y"}, nil)
	if err != nil || len(cfg.Discovery.DNSNames) != 2 {
		t.Errorf("names of the environment: %q, %v", cfg.Discovery.DNSNames, err)
	}
	w, err := DNSName("e.internal.:1,scheme=https,api_key_file=k").Parse()
	if err != nil || w.Name != "e.internal." || w.Port != 1 {
		t.Fatalf("%+v, %v", w, err)
	}
	w.Worker.APIKeyFile = ""
	worker, err := w.Complete(cfg)
	if err != nil || worker.TLS.ServerName != "e.internal" || worker.URL != "" {
		t.Errorf("%+v, %v", worker, err)
	}
}
