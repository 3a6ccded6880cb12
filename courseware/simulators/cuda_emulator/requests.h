// Counts requests.
//
// A request is one instruction of one warp. Which accesses of its lanes belong together? A lane's n-th execution of an
// instruction with the n-th of the other lanes, where n counts from the latest barrier or shuffle: an interval. What a
// request costs depends on where its lanes are within 128 bytes, so that requests alike are counted, and report.py
// looks at one of them.
#pragma once
#include <array>
#include <map>
#include <vector>

#include "device.h"

typedef uintptr_t Address;
const int LANES = 32;
enum Access : uint8_t { LOAD, STORE };
static const char* const VERBS[] = {"load", "store"};
const int SHARED = -1;                                       // in the place of an array's number: all of shared memory
typedef std::pair<int, std::array<Address, LANES>> Request;  // an array, and the lanes' addresses: 0 if a lane is off
struct Site {                                                // an instruction
  Access access;
  unsigned size;
  int array;                      // number of that of its latest access
  size_t executed[LANES];         // how often in this interval, by lane
  std::vector<Request> requests;  // of this interval
  std::map<Request, long long> counts;
};
static std::vector<Site*> site_at;       // for each address of the program
static std::vector<Site*> active_sites;  // in this interval

// array: its number, or SHARED.
static void record(Site* site, int array, int lane, Address a) {
  if (site->requests.empty()) active_sites.push_back(site);
  size_t& n = site->executed[lane];
  while (n < site->requests.size() && site->requests[n].first != array) n++;
  if (n == site->requests.size()) site->requests.emplace_back(array, std::array<Address, LANES>{});
  site->requests[n++].second[lane] = a;
}

// All lanes of the warp that ran last wait, so that no request is still growing.
static void end_interval() {
  for (Site* site : active_sites) {
    for (Request& request : site->requests) {
      Address least = ~Address(0);
      for (Address a : request.second) if (a) least = std::min(least, a);
      for (Address& a : request.second) if (a) a = a - least / 128 * 128 + 128;
      site->counts[request]++;
    }
    site->requests.clear();
    memset(site->executed, 0, sizeof site->executed);
  }
  active_sites.clear();
}

static void write_counts(FILE* report) {
  for (const Site* site : site_at) {
    if (!site) continue;
    for (const auto& [request, count] : site->counts) {
      fprintf(report, "requests\t%s\t%u\t%d\t%lld", VERBS[site->access], site->size, request.first, count);
      for (Address a : request.second) fprintf(report, "\t%zu", a);
      fprintf(report, "\n");
    }
  }
}
