package events

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func TestSourcesOfVLLM(t *testing.T) {
	const one = `{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:6557",` +
		`"buffer_steps":10000,"hwm":100000,"max_queue_size":100000,"topic":"kv@w0@tiny"}`
	for _, c := range []struct {
		name, host, answer string
		want               []Source
		err                string
	}{
		{"one rank", "w0", `{"0":` + one + `}`, []Source{{Rank: 0, Endpoint: "tcp://w0:5557", Replay: "tcp://w0:6557", Topic: "kv@w0@tiny"}}, ""},
		{"events off", "w0", `{}`, nil, ErrNoSources.Error()},
		{"said to be off", "w0", `{"0":{"enable_kv_cache_events":false,"publisher":"null","endpoint":"tcp://*:5557"}}`, nil, ErrNoSources.Error()},
		{"another publisher", "w0", `{"0":{"enable_kv_cache_events":true,"publisher":"null"}}`, nil, ErrNoSources.Error()},
		{"several ranks, in their order", "10.0.0.7", `{"10":{"endpoint":"tcp://*:5567"},"2":{"endpoint":"tcp://*:5559","replay_endpoint":null,"topic":null}}`,
			[]Source{{Rank: 2, Endpoint: "tcp://10.0.0.7:5559"}, {Rank: 10, Endpoint: "tcp://10.0.0.7:5567"}}, ""},
		{"IPv6", "fd00::7", `{"0":{"endpoint":"tcp://[::]:5557"}}`, []Source{{Rank: 0, Endpoint: "tcp://[fd00::7]:5557"}}, ""},
		{"no endpoint said", "w0", `{"0":{"publisher":"zmq"}}`, []Source{{Rank: 0, Endpoint: "tcp://w0:5557"}}, ""},
		{"another host: the worker's own is used", "w0", `{"0":{"endpoint":"tcp://169.254.169.254:80","replay_endpoint":"tcp://db:5432"}}`,
			[]Source{{Rank: 0, Endpoint: "tcp://w0:80", Replay: "tcp://w0:5432"}}, ""},
		{"one of two cannot be used", "w0", `{"0":{"endpoint":"ipc:///tmp/kv"},"1":{"endpoint":"tcp://*:5558"}}`,
			[]Source{{Rank: 1, Endpoint: "tcp://w0:5558"}}, `rank 0: endpoint "ipc:///tmp/kv": only tcp://HOST:PORT is supported`},
		{"a rank that is no number", "w0", `{"-1":{},"x":{},"4096":{},"99999999999999999999":{}}`, nil, "not a number below 1024"},
		{"a port that is none", "w0", `{"0":{"endpoint":"tcp://*:0"}}`, nil, "its port is no number"},
		{"a rank of the wrong type", "w0", `{"0":[]}`, nil, "rank 0: json"},
		{"a long topic", "w0", `{"0":{"topic":"` + strings.Repeat("x", 999) + `"}}`, nil, "a topic of 999 bytes"},
		{"not JSON", "w0", `<html>`, nil, "invalid character"},
		{"a list", "w0", `[]`, nil, "json"},
		{"null", "w0", `null`, nil, ErrNoSources.Error()},
		{"nothing", "w0", ``, nil, "unexpected end"},
		{"nested without end", "w0", strings.Repeat(`{"0":`, 1<<20/5), nil, "depth"},
		{"too much", "w0", strings.Repeat(" ", maxAnswer+1), nil, "at most"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := VLLMSources(c.host, []byte(c.answer))
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("%+v, want %+v", got, c.want)
			}
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("error %v, want %q", err, c.err)
			}
		})
	}
}

func TestSourcesOfSGLang(t *testing.T) {
	for _, c := range []struct {
		name, answer string
		want         []Source
		err          string
	}{
		{"the option as text", `{"kv_events_config":"{\"publisher\":\"zmq\",\"endpoint\":\"tcp://*:6000\",\"replay_endpoint\":\"tcp://*:7000\",\"topic\":\"kv\"}","dp_size":2}`,
			[]Source{{Rank: 0, Endpoint: "tcp://w0:6000", Replay: "tcp://w0:7000", Topic: "kv"}, {Rank: 1, Endpoint: "tcp://w0:6001", Replay: "tcp://w0:7001", Topic: "kv"}}, ""},
		{"the option as an object", `{"kv_events_config":{"publisher":"zmq"}}`, []Source{{Rank: 0, Endpoint: "tcp://w0:5557"}}, ""},
		{"what the server says", `{"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":6000,"topic":"kv","block_size":64,"dp_size":2},"dp_size":1}`,
			[]Source{{Rank: 0, Endpoint: "tcp://w0:6000", Topic: "kv"}, {Rank: 1, Endpoint: "tcp://w0:6001", Topic: "kv"}}, ""},
		{"both", `{"kv_events":{"publisher":"zmq","endpoint_port_base":6000},"kv_events_config":"{\"publisher\":\"zmq\",\"endpoint\":\"tcp://*:1\",\"replay_endpoint\":\"tcp://*:7000\"}"}`,
			[]Source{{Rank: 0, Endpoint: "tcp://w0:6000", Replay: "tcp://w0:7000"}}, ""},
		{"off", `{"kv_events":null,"kv_events_config":null,"dp_size":1}`, nil, ErrNoSources.Error()},
		{"the option empty", `{"kv_events_config":""}`, nil, ErrNoSources.Error()},
		{"no publisher said, which is none", `{"kv_events_config":"{\"endpoint\":\"tcp://*:6000\"}"}`, nil, ErrNoSources.Error()},
		{"older servers, which say nothing", `{"model_path":"tiny"}`, nil, ErrNoSources.Error()},
		{"too many ranks", `{"kv_events":{"publisher":"zmq","endpoint_port_base":6000,"dp_size":2000000000}}`, nil, "at most 1024"},
		{"less than none", `{"kv_events":{"publisher":"zmq","endpoint_port_base":6000,"dp_size":-1}}`, nil, "dp_size -1"},
		{"ports that run out", `{"kv_events":{"publisher":"zmq","endpoint_port_base":65535,"dp_size":2}}`, []Source{{Rank: 0, Endpoint: "tcp://w0:65535"}}, "port 65536"},
		{"ipc", `{"kv_events_config":{"publisher":"zmq","endpoint":"ipc://x"}}`, nil, "only tcp"},
		{"text that is no JSON", `{"kv_events_config":"yes"}`, nil, "kv_events_config"},
		{"a number", `{"kv_events_config":7}`, nil, "kv_events_config"},
		{"not JSON", `x`, nil, "invalid character"},
		{"too much", strings.Repeat(" ", maxAnswer+1), nil, "at most"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := SGLangSources("w0", []byte(c.answer))
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("%+v, want %+v", got, c.want)
			}
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("error %v, want %q", err, c.err)
			}
		})
	}
}

func TestSourcesThatAreSet(t *testing.T) {
	for _, c := range []struct {
		endpoint, replay string
		rank             int
		want             Source
		ok               bool
	}{
		{"tcp://*:5557", "tcp://*:6557", 2, Source{Rank: 2, Endpoint: "tcp://w0:5559", Replay: "tcp://w0:6559", Topic: "kv"}, true},
		{"tcp://0.0.0.0:5557", "", 0, Source{Rank: 0, Endpoint: "tcp://w0:5557", Topic: "kv"}, true},
		{"tcp://collector:5557", "tcp://[fd00::1]:6557", 0, Source{Rank: 0, Endpoint: "tcp://collector:5557", Replay: "tcp://[fd00::1]:6557", Topic: "kv"}, true},
		{"", "tcp://*:6557", 0, Source{}, false},
		{"tcp://*:65535", "", 1, Source{}, false},
		{"ipc://x", "", 0, Source{}, false},
	} {
		got, err := ConfiguredSource("w0", c.endpoint, c.replay, "kv", c.rank)
		if (err == nil) != c.ok || c.ok && got != c.want {
			t.Errorf("%s, %s: %+v, %v", c.endpoint, c.replay, got, err)
		}
	}
	if _, err := ConfiguredSource("w0", "ipc://x", "", "", 0); !strings.Contains(fmt.Sprint(err), "only tcp") || errors.Is(err, ErrNoSources) {
		t.Error(err)
	}
}

// Whatever is answered, the streams that it leads to are on the worker's own host.
func FuzzSources(f *testing.F) {
	f.Add([]byte(`{"0":{"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://[::]:6557","topic":"t"}}`))
	f.Add([]byte(`{"kv_events":{"publisher":"zmq","endpoint_port_base":5557,"dp_size":3},"kv_events_config":"{\"replay_endpoint\":\"tcp://x:1\"}"}`))
	f.Fuzz(func(t *testing.T, answer []byte) {
		for _, read := range []func(string, []byte) ([]Source, error){VLLMSources, SGLangSources} {
			found, err := read("w0", answer)
			if len(found) == 0 && err == nil {
				t.Fatal("neither sources nor an error")
			}
			for _, s := range found {
				if _, err := New(Options{Endpoint: s.Endpoint, Replay: s.Replay, Topic: s.Topic, Rank: s.Rank}); err != nil ||
					!strings.HasPrefix(s.Endpoint, "tcp://w0:") || s.Replay != "" && !strings.HasPrefix(s.Replay, "tcp://w0:") || s.Rank < 0 || s.Rank >= maxRanks {
					t.Fatalf("%+v: %v", s, err)
				}
			}
		}
	})
}
