package engine

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// scripted answers by path, 404 for all others, and remembers what it was asked. An
// answer "lost" is none.
func scripted(answers map[string]string, asked *[]string) Ask {
	return func(_ context.Context, q Question) (int, []byte, error) {
		*asked = append(*asked, q.Method+q.Path)
		switch a, ok := answers[q.Path]; {
		case !ok:
			return 404, nil, nil
		case a == "lost":
			return 0, nil, errors.New("no answer")
		default:
			return 200, []byte(a), nil
		}
	}
}

// Each dialect is recognised by what its engine answers, and asked for no more than it
// may have.
func TestReadFacts(t *testing.T) {
	const (
		sglangModels = `{"data":[{"id":"m","owned_by":"sglang"}]}`
		vllmModels   = `{"data":[{"id":"m","owned_by":"vllm"}]}`
		otherModels  = `{"data":[{"id":"m","owned_by":"me"}]}`
		sglangInfo   = `{"disaggregation_mode":"prefill","disaggregation_bootstrap_port":9000,"version":"1","page_size":64}`
		vllmInfo     = `{"vllm_config":{"scheduler_config":{"max_num_seqs":7},"kv_transfer_config":{"kv_connector":"LMCacheConnectorV1"}},"page_size":64}`
		vllmInfoPath = "/server_info?config_format=json"
	)
	type result struct {
		Backend, Version, Connector, InfoPath string
		Port                                  int
		Page, Running                         int64
		Missing                               []string
		Incomplete, InfoLost                  bool
	}
	for _, tc := range []struct {
		name    string
		answers map[string]string
		set     Dialect
		want    result
		asked   []string
	}{
		{
			"SGLang", map[string]string{"/v1/models": sglangModels, "/server_info": sglangInfo, "/model_info": "{}"}, nil,
			result{Backend: "sglang", Version: "1", InfoPath: "/server_info", Port: 9000, Page: 64},
			[]string{"/v1/models", "/server_info", "/model_info"},
		},
		{
			"SGLang of earlier versions", map[string]string{"/v1/models": otherModels, "/get_server_info": sglangInfo, "/get_model_info": "{}"}, nil,
			result{Backend: "sglang", Version: "1", InfoPath: "/get_server_info", Port: 9000, Page: 64},
			[]string{"/v1/models", "/server_info", "/get_server_info", "/model_info", "/get_model_info"},
		},
		{
			"vLLM", map[string]string{"/v1/models": vllmModels, "/version": `{"version":"2"}`}, nil,
			result{Backend: "vllm", Version: "2"},
			[]string{"/v1/models", vllmInfoPath, "/version"},
		},
		{
			"vLLM in development mode, in disguise", map[string]string{"/v1/models": otherModels, "/server_info": vllmInfo, vllmInfoPath: vllmInfo, "/version": `{"version":"2"}`}, nil,
			result{Backend: "vllm", Version: "2", Connector: ConnectorLMCache, Running: 7},
			[]string{"/v1/models", "/server_info", vllmInfoPath, "/version"},
		},
		{
			"what the models say is corrected", map[string]string{"/v1/models": vllmModels, vllmInfoPath: sglangInfo, "/server_info": sglangInfo}, nil,
			result{Backend: "sglang", Version: "1", InfoPath: "/server_info", Port: 9000, Page: 64, Missing: []string{"/model_info"}},
			[]string{"/v1/models", vllmInfoPath, "/server_info", "/model_info", "/get_model_info"},
		},
		{
			"nothing is known", map[string]string{"/v1/models": otherModels}, nil,
			result{Missing: []string{"/server_info", "/model_info"}},
			[]string{"/v1/models", "/server_info", "/get_server_info", "/model_info", "/get_model_info"},
		},
		{
			"an answer is lost", map[string]string{"/v1/models": otherModels, "/server_info": "lost", "/model_info": "{}"}, nil,
			result{Incomplete: true, InfoLost: true},
			[]string{"/v1/models", "/server_info", "/model_info"},
		},
		{
			"the operator knows better", map[string]string{"/v1/models": sglangModels, "/version": `{"version":"2"}`}, VLLM{},
			result{Backend: "sglang", Version: "2"},
			[]string{"/v1/models", vllmInfoPath, "/version"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var asked []string
			f := NewRegistry(SGLang{}, VLLM{}).ReadFacts(t.Context(), scripted(tc.answers, &asked), tc.set)
			got := result{f.Backend, f.Version, f.Connector, f.InfoPath, f.BootstrapPort, f.PageSize, f.MaxRunningRequests, f.Missing, f.Incomplete, f.InfoLost}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("facts (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tc.asked, asked); d != "" {
				t.Errorf("asked (-want +got):\n%s", d)
			}
		})
	}
}
